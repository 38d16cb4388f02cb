package place_test

import (
	"encoding/binary"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
)

func TestTheImageAndTheServicesOfAJobAreTakenOutOfIt(t *testing.T) {
	for name, test := range map[string]struct {
		text, rest string
		want       *place.Spec
	}{
		"none": {"run: [{script: echo image}]\n", "run: [{script: echo image}]\n", nil},
		"a name": {
			"# first\nimage: busybox:1 # why\nrun:\n  - script: echo\n", "# first\n\nrun:\n  - script: echo\n",
			&place.Spec{Image: "busybox:1"},
		},
		"last, without a newline": {"run: []\nimage: busybox:1", "run: []\n", &place.Spec{Image: "busybox:1"}},
		"after a spec": {
			"spec: {}\n---\nimage: a\nrun: []\n", "spec: {}\n---\n\nrun: []\n", &place.Spec{Image: "a"},
		},
		"all": {
			`image:
  name: &db postgres:17
  entrypoint: [""]
  pull_policy: [always]
  docker: {user: "1000", platform: linux/arm64}
services:
  - *db
  - name: redis:7
    alias: cache
    entrypoint: [""]
    command: [redis-server, --save]
    variables: {A: b, N: 1}
    healthcheck: {test: "a b", interval: 10s, timeout: 1m30s, retries: 5, start_period: 20ms, disable: false}
run: []
`, "\n\n\n\n\n\n\n\n\n\n\n\n\nrun: []\n",
			&place.Spec{
				Image: "postgres:17", Pull: place.PullAlways, User: "1000", Platform: "linux/arm64",
				Services: []place.Service{
					{Image: "postgres:17"},
					{
						Image: "redis:7", Alias: "cache", Entrypoint: []string{""}, Command: []string{"redis-server", "--save"},
						Env: []string{"A=b", "N=1"}, Health: &place.Health{
							Test: "a b", Interval: 10 * time.Second, Timeout: 90 * time.Second, Retries: 5,
							StartPeriod: 20 * time.Millisecond,
						},
					},
				},
			},
		},
		"no YAML": {"image: [", "image: [", nil},
		"a list":  {"- script: echo image\n", "- script: echo image\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			rest, spec, err := place.FromJob("job.yml", []byte(test.text))
			require.NoError(t, err)
			require.Equal(t, test.rest, string(rest))
			require.Equal(t, test.want, spec)
		})
	}
}

func TestAMistakeInTheImageOfAJobHasItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"image: ''\n":                          "job.yml:1:8: the image has no name",
		"image:\n  named: a\n":                 `job.yml:2:3: unknown key "named", did you mean "name"?`,
		"image: [a]\n":                         "job.yml:1:8: image must be a text",
		"image: a\nservices: b\n":              "job.yml:2:11: services must be a list, not a text",
		"image: {named: a, xy: b}\n":           `job.yml:1:9: unknown key "named", did you mean "name"?`,
		"image: {zzzzz: a}\n":                  `unknown key "zzzzz"; image has docker, entrypoint, name, pull_policy`,
		"image: {name: a, name: b}\n":          `job.yml:1:18: the key "name" is given twice`,
		"services: [{alias: a}]\n":             "job.yml:1:12: a service has no image",
		"image: {name: a, pull_policy: no}\n":  `job.yml:1:31: pull_policy "no": use one of`,
		"a: 1\rimage: x\rb: 2":                 `the character "\r", which YAML takes for the end of a line`,
		"name: \"a\u2028b\"\nimage: x\nb: 2\n": `the character "\u2028", which YAML takes`,
		"{image: a, run: []}\n":                "job.yml:1:2: image: write each key of the job on a line of its own",

		"services: [{name: a, healthcheck: {timeout: x}}]\n":    `the time "x" is not valid`,
		"services: [{name: a, healthcheck: {interval: -1s}}]\n": "the health check has the time -1s",
		"services: [{name: a, healthcheck: {retries: many}}]\n": `retries is a number, not "many"`,
	} {
		_, _, err := place.FromJob("job.yml", []byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// The lines of such a text are not those of its bytes: the manager that read it ended. U+0085 is a line break of YAML,
// and three other characters are the bytes of "images".
func TestAJobInUTF16ComesBackAsItIs(t *testing.T) {
	text := []byte{0xff, 0xfe}
	for _, c := range utf16.Encode([]rune("#\u6d69\u6761\u7365\u0085\u0085\u0085image: x\u0085run: []")) {
		text = binary.LittleEndian.AppendUint16(text, c)
	}
	rest, spec, err := place.FromJob("job.yml", text)
	require.NoError(t, err)
	require.Nil(t, spec)
	require.Equal(t, text, rest)
}
