package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Symptom: on a busy VM the session was closed before setsid had made its process group, and the program that was asked
// for its version stayed.
func TestAProgramThatIsAskedEndsWithStdinAlsoBeforeItHasItsSession(t *testing.T) {
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	slow := "#!/bin/sh\n: >'" + began + "'\nexec sleep 600\n" // it never calls setsid(2)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "setsid"), []byte(slow), 0o700))
	argv := versionArgv([]string{"true"})
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { _, err := os.Stat(began); return err == nil }, time.Minute, time.Millisecond)
	require.NoError(t, stdin.Close())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	require.Eventually(t, func() bool { return len(ended) > 0 }, time.Minute, time.Millisecond, "it goes on")
	require.ErrorContains(t, <-ended, "exit status 137")
}
