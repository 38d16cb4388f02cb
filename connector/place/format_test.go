package place_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
)

// What Format writes is what FromJob reads.
func TestAnImageAndServicesAreReadAsTheyWereWritten(t *testing.T) {
	for _, spec := range []*place.Spec{
		{Image: "busybox:1"},
		{Services: []place.Service{{Image: "web", Env: []string{}}}},
		{
			Image: "a", Pull: place.PullNever, Platform: "linux/arm64", User: "1000:1000", Entrypoint: []string{"/e", "x y"},
			Services: []place.Service{{
				Image: "db: #1", Alias: "d", Entrypoint: []string{""}, Command: []string{"-", "~", "{}"},
				Health: &place.Health{
					Test: "a && b", Interval: 1500 * time.Millisecond, Timeout: time.Minute, StartPeriod: time.Hour, Retries: 4,
				},
				Env: []string{"A=\u0085\u2028\ufeff\x7f \U0001f600\n\"", "B=1", "C=", "D=null"},
			}, {
				Image: "e", Env: []string{}, Health: &place.Health{Disabled: true},
			}, {Image: "h", Env: []string{}, Health: &place.Health{}}},
		},
	} {
		text, err := place.Format(spec)
		require.NoError(t, err)
		_, got, err := place.FromJob("job", []byte(text))
		require.NoError(t, err, text)
		for i := range got.Services {
			if got.Services[i].Env == nil {
				got.Services[i].Env = []string{}
			}
		}
		require.Equal(t, spec, got)
	}
	text, err := place.Format(&place.Spec{Services: []place.Service{{Image: "a", Env: []string{"A=1", "A=2"}}}})
	require.NoError(t, err)
	_, got, err := place.FromJob("job", []byte(text))
	require.NoError(t, err)
	require.Equal(t, []string{"A=2"}, got.Services[0].Env)
}
