package whole

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pipeline"
)

// The builds of a matrix over calls are known once others have ended: the bound is of all together.
func TestTheJobsOfARunAreBounded(t *testing.T) {
	var said []string
	r := &runner{cfg: Config{Say: func(text string) { said = append(said, text) }}}
	opens := &Job{Open: func([]Before, bool, func(string)) (*Opened, error) { return nil, nil }}
	builds := make([]*Job, 200)
	for i := range builds {
		builds[i] = &Job{}
	}
	for range pipeline.MaxNodes / len(builds) {
		require.True(t, r.has([]*Job{opens}))
		require.True(t, r.has(builds))
	}
	require.False(t, r.has(builds[:1]))
	_, _, err := r.carryOut(t.Context(), &Pipeline{Jobs: builds}, scope{})
	require.ErrorIs(t, err, errManyJobs)
	c := &carrier{runner: r, pipeline: &Pipeline{Jobs: []*Job{{Name: "call"}}}}
	result := c.notCarried(0, err)
	require.Equal(t, exitInvalid, result.ExitCode)
	require.Equal(t, []string{"call: the run would have more than 10000 jobs"}, said)
	require.Empty(t, r.systems)
}
