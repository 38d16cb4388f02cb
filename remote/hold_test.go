package remote

import (
	"bytes"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/remotetest"
)

// startHold starts a container's first process, beside those that script starts.
func startHold(t *testing.T, idle time.Duration, script string) *exec.Cmd {
	t.Helper()
	remotetest.NeedRoot(t) // for the namespace
	cmd := remotetest.Role(t.Context(), "hold", idle.String())
	cmd.Args = append([]string{"sh", "-c", script + ` exec "$0" "$1"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	cmd.Stderr = &bytes.Buffer{}
	require.NoError(t, cmd.Start())
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
	// A first process gets no signal before it handles it.
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	require.Eventually(t, func() bool {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		return len(ended) > 0
	}, 8*time.Second, 50*time.Millisecond)
	require.NoError(t, <-ended, "%v", cmd.Stderr)
}
