package remote

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// runCI runs steps in a directory, and returns the output, the messages and the exit code.
func runCI(
	ctx context.Context, t *testing.T, dir, steps string, env ...string,
) (stdout, stderr string, code int, err error) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		file, err := os.CreateTemp(t.TempDir(), "out")
		require.NoError(t, err)
		defer file.Close()
		files[i] = file
	}
	env = append(env, "PATH="+os.Getenv("PATH"), "STEPS="+steps)
	code, err = CI(ctx, Stdio{Out: files[0], Err: files[1]}, CIConfig{WorkDir: dir, Environ: env})
	var texts [2]string
	for i, file := range files {
		_, seekErr := file.Seek(0, io.SeekStart)
		require.NoError(t, seekErr)
		text, readErr := io.ReadAll(file)
		require.NoError(t, readErr)
		texts[i] = string(text)
	}
	return texts[0], texts[1], code, err
}

func TestCIRunsTheStepsOfAJobsScript(t *testing.T) {
	dir := t.TempDir()
	const token = "glcbt-64_secret_token"
	out, messages, code, err := runCI(t.Context(), t, dir,
		`[{"name":"one","script":"pwd; echo ${{ vars.COLOUR }} $COLOUR ${{ vars.CI_JOB_TOKEN }}"},`+
			`{"name":"two","script":"exit 7"}]`,
		"COLOUR=red", "CI_JOB_TOKEN="+token)
	require.NoError(t, err)
	require.Equal(t, 7, code)
	require.Equal(t, "Running step \"one\"\n"+dir+"\nred red [MASKED]\nRunning step \"two\"\n", out)
	require.Contains(t, messages, "exit status 7")

	_, _, code, err = runCI(t.Context(), t, dir, "- script: 'true'")
	require.NoError(t, err)
	require.Zero(t, code)
	_, _, _, err = runCI(t.Context(), t, dir, "- scrip: x")
	require.ErrorContains(t, err, "STEPS:1:")
	_, _, _, err = runCI(t.Context(), t, dir, "")
	require.ErrorContains(t, err, "STEPS is not set")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, code, err = runCI(ctx, t, dir, "- script: sleep 600")
	require.NoError(t, err)
	require.NotZero(t, code)
}
