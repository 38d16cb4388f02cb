package remote

import (
	"bufio"
	"bytes"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// startHold starts a container's first process, beside those that script starts. It returns once that process handles
// signals.
func startHold(t *testing.T, idle time.Duration, script string) *exec.Cmd {
	t.Helper()
	remotetest.NeedRoot(t) // for the namespace
	cmd := remotetest.Role(t.Context(), "hold", idle.String())
	cmd.Args = append([]string{"sh", "-c", script + ` exec "$0" "$1"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	cmd.Stderr = &bytes.Buffer{}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "%v", cmd.Stderr)
	require.Equal(t, "signals are handled\n", line)
	return cmd
}

func TestHoldEndsWhenTheOthersAreGone(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, Hold(t.Context(), HoldConfig{Idle: time.Second}), "not the first process")
	began := time.Now()
	cmd := startHold(t, time.Millisecond, "sleep 1.5 &")
	require.NoError(t, cmd.Wait(), "%v", cmd.Stderr)
	require.Greater(t, time.Since(began), 1400*time.Millisecond)
}

func TestHoldEndsTheOthersAtItsEnd(t *testing.T) {
	t.Parallel()
	cmd := startHold(t, time.Hour, "(trap 'exit 0' TERM; sleep 600 & wait) & sleep 600 &")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%v", cmd.Stderr)
}
