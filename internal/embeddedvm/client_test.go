package embeddedvm_test

import (
	"bytes"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

const sshPath = "/usr/bin/ssh"

// openSSHClient returns a command that runs the real client against s.
func openSSHClient(t *testing.T, s *sshtest.Server, args ...string) *exec.Cmd {
	t.Helper()
	sshtest.RequirePart(t, "openssh-client", sshPath)
	host, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	options := []string{
		"-F", "none", "-p", port, "-l", s.User, "-i", s.IdentityFile,
		"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "UserKnownHostsFile=" + s.KnownHosts, "-o", "ExitOnForwardFailure=yes",
	}
	return exec.CommandContext(t.Context(), sshPath, append(append(options, args...), host)...)
}

func TestRealClientRunsCommands(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	cmd := openSSHClient(t, s)
	cmd.Args = append(cmd.Args, "cat; echo err >&2; exit 42")
	cmd.Stdin = strings.NewReader("in")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", stderr.String())
	require.Equal(t, 42, exit.ExitCode())
	require.Equal(t, "in", string(out))
	require.Equal(t, "err\n", stderr.String())
}

func TestRealClientForwardsItsStdioToAPort(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	addr := sshtest.Listen(t, "tcp", "127.0.0.1:0", func(near net.Conn) {
		all, _ := io.ReadAll(near)
		_, _ = near.Write(append([]byte("got "), all...))
	})
	cmd := openSSHClient(t, s, "-W", addr)
	cmd.Stdin = strings.NewReader("in")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "got in", string(out))
}

func TestRealClientForwardsUnixSockets(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	dir := sshtest.SocketDir(t)
	local, remote := filepath.Join(dir, "local"), filepath.Join(dir, "remote")
	sshtest.Listen(t, "unix", remote, func(near net.Conn) {
		all, _ := io.ReadAll(near)
		_, _ = near.Write(append([]byte("got "), all...))
	})
	cmd := openSSHClient(t, s, "-N", "-L", local+":"+remote)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var nc net.Conn
	eventually(t, func() (ok bool) {
		var err error
		nc, err = net.Dial("unix", local)
		return err == nil
	}, "ssh listens")
	defer nc.Close()
	_, err := nc.Write([]byte("in"))
	require.NoError(t, err)
	require.NoError(t, nc.(socket).CloseWrite())
	got, err := io.ReadAll(nc)
	require.NoError(t, err)
	require.Equal(t, "got in", string(got))
}
