package job

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// Symptom: a job put a link in the place of the directory of all jobs, and the step runner wrote the next job's files
// to places where the job itself may not write.
func TestDirectoryOfAllJobsIsNotTakenByItsPath(t *testing.T) {
	s := newStore(t, Config{})
	elsewhere := t.TempDir()
	_, first := run(t, s, script(t, "1",
		"jobs=$(dirname \"$(dirname \"$PWD\")\"); mv $jobs $jobs.old; ln -s "+elsewhere+" $jobs"))
	require.Equal(t, engine.Success, first.Status, first.Message)
	spec := yaml(t, "2", "run: [{name: a, script: 'true ${{output_file}}'}]")
	spec.Trace = &TraceSpec{}
	_, second := run(t, s, spec)
	require.Equal(t, engine.Failure, second.Status, "its work directory is not at its path")
	entries, err := os.ReadDir(elsewhere)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NoError(t, s.Close())
}
