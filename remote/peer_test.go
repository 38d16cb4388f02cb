package remote

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// dialRole connects to path without looking at who listens, and reads to the end.
func dialRole(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// listenRole listens on path, says so on stdout, and ends when stdin does.
func listenRole(path string) error {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer ln.Close()
	if _, err := os.Stdout.WriteString("up"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// asNobody returns a command that runs this test binary as role, and as another user.
func asNobody(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := shortTemp(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	binary := filepath.Join(dir, "test") // the test binary's own directory is private
	text, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, text, 0o755))
	cmd := role(t.Context(), name, args...)
	cmd.Path, cmd.Dir = binary, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestListenerTurnsAwayOtherUsers(t *testing.T) {
	needRoot(t)
	dir := shortTemp(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "s")
	notes := newOutput()
	ln, err := listen(path, &notices{w: notes})
	require.NoError(t, err)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, fi.Mode())
	require.NoError(t, os.Chmod(path, 0o666))

	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	out, err := asNobody(t, "dial", path).CombinedOutput() // ends because it was turned away
	require.NoError(t, err, "%s", out)
	require.Empty(t, accepted)
	require.Contains(t, notes.String(), "refused a connection")
	require.Contains(t, notes.String(), "of user 65534")

	conn, err := dial(t.Context(), path)
	require.NoError(t, err)
	defer conn.Close()
	theirs := <-accepted
	require.NotNil(t, theirs)
	ln.closeConns()
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Empty(t, ln.conns)
	require.NoError(t, ln.Close())
	<-accepted
}
