package runnertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// StartManager starts a manager, which cmd describes, and waits until it listens, for some time at most. Only the
// manager's word to systemd tells: the socket of a manager that was killed is still there. The caller ends the process.
// One that does not come to listen is killed, and the test fails; said is shown then.
func StartManager(t testing.TB, cmd *exec.Cmd, patience time.Duration, said interface{ String() string }) {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // that of the test may be too long for a socket
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }() // in the system's directory for temporary files
	path := filepath.Join(dir, "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = systemd.Close() }() // nothing is sent
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path)
	require.NoError(t, cmd.Start())
	require.NoError(t, systemd.SetReadDeadline(time.Now().Add(patience)))
	told := make([]byte, 64)
	n, err := systemd.Read(told)
	if err != nil {
		_, _ = cmd.Process.Kill(), cmd.Wait() // it may have ended
		require.FailNow(t, "the manager did not come to listen", said.String())
	}
	require.Equal(t, "READY=1", string(told[:n]))
}
