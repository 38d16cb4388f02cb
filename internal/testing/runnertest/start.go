package runnertest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// StartManager starts the manager in cmd, and waits until it listens, for at most patience. It waits for the manager's
// message to systemd, because the socket of a killed manager may still be there. The caller ends the process. If the
// manager ends, or does not listen in time, it is killed, and the test fails and shows said.
func StartManager(t testing.TB, cmd *exec.Cmd, patience time.Duration, said interface{ String() string }) {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // the test's own directory may have a name too long for a socket
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
	told := make([]byte, 64)
	n, err := 0, os.ErrDeadlineExceeded
	for end := time.Now().Add(patience); errors.Is(err, os.ErrDeadlineExceeded) &&
		time.Now().Before(end) && sshtest.Runs(cmd.Process.Pid); {
		require.NoError(t, systemd.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		n, err = systemd.Read(told)
	}
	if err != nil {
		_, _ = cmd.Process.Kill(), cmd.Wait() // it may have ended
		require.FailNow(t, "the manager did not come to listen", said.String())
	}
	require.Equal(t, "READY=1", string(told[:n]))
}
