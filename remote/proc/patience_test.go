package proc

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// slackOf returns the timer slack of a process that start starts with these stdio.
func slackOf(t *testing.T, start func(program string, argv []string, attr *syscall.ProcAttr) error) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	argv := []string{"sh", "-c", "read slack </proc/self/timerslack_ns; echo $slack"}
	err = start("/bin/sh", argv, &syscall.ProcAttr{Files: []uintptr{0, w.Fd(), 2}})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	text := make([]byte, 64)
	n, err := r.Read(text)
	require.NoError(t, err)
	return strings.TrimSpace(string(text[:n]))
}

// The threads of a server look for work less often; those of its commands do not.
func TestOnlyServersGetTheSlackOfTheirMonitor(t *testing.T) {
	if _, err := os.Stat("/proc/self/timerslack_ns"); err != nil {
		t.Skip("this kernel does not tell the slack of a process")
	}
	children, err := Adopt(syscall.ForkExec)
	require.NoError(t, err)
	defer children.Release()
	defer children.KillAll()
	started := func(start func(string, []string, *syscall.ProcAttr) (*Child, error)) string {
		return slackOf(t, func(program string, argv []string, attr *syscall.ProcAttr) error {
			_, err := start(program, argv, attr)
			return err
		})
	}
	require.Equal(t, "2000003", started(children.StartServer))
	require.NotEqual(t, "2000003", started(children.Start))
}
