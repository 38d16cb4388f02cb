package remote

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

// mktemp makes a directory as the shell of GitLab Runner's manager does, and returns its socket's path.
func mktemp(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp(remotetest.ShortTemp(t), "step-runner.") //nolint:usetesting // t.TempDir is too long
	require.NoError(t, err)
	return filepath.Join(dir, wire.SocketName)
}

// holdUp runs a job in s that does not end by itself.
func (s *served) holdUp(t *testing.T) *vitals {
	t.Helper()
	v := newVitals(t)
	runScript(t, clientOf(t, s.stderr.Socket()), "1", v.script(t, "sleep 1000"))
	v.waitUp(t)
	return v
}

func TestServeKeepsItsFilesInADirectoryOfItsCallersAndLeavesItEmpty(t *testing.T) {
	socket := mktemp(t)
	dir := filepath.Dir(socket)
	s := startServe(t, socket)
	v := s.holdUp(t)
	require.Equal(t, []string{wire.SocketName, wire.SocketName + ".d"}, remotetest.Names(t, dir))
	require.NoError(t, s.cmd.Process.Signal(unix.SIGTERM))
	<-s.exited
	v.waitGone(t)
	require.Equal(t, 0, s.cmd.ProcessState.ExitCode(), s.stderr)
	require.Equal(t, greeting(socket), s.stderr.String())
	require.Empty(t, remotetest.Names(t, dir))
	require.Equal(t, []string{filepath.Base(dir)}, remotetest.Names(t, filepath.Dir(dir)), "it made something outside")
}

func TestServeEndsWellWhenItsCallerHasRemovedTheDirectory(t *testing.T) {
	socket := mktemp(t)
	s := startServe(t, socket)
	v := s.holdUp(t)
	require.NoError(t, os.RemoveAll(filepath.Dir(socket)))
	require.NoError(t, s.cmd.Process.Signal(unix.SIGTERM))
	<-s.exited
	v.waitGone(t)
	require.Equal(t, 0, s.cmd.ProcessState.ExitCode(), s.stderr)
	require.Equal(t, greeting(socket), s.stderr.String())
	remotetest.RequireGone(t, filepath.Dir(socket))
}

func TestKilledServeLeavesItsCallersDirectoryWithoutFilesOfJobs(t *testing.T) {
	socket := mktemp(t)
	s := startServe(t, socket)
	v := s.holdUp(t)
	require.NoError(t, s.cmd.Process.Kill())
	<-s.exited
	v.waitGone(t)
	remotetest.Eventually(t, func() bool { return len(remotetest.Names(t, filepath.Dir(socket))) == 1 }, "files are left")
	require.Equal(t, []string{wire.SocketName}, remotetest.Names(t, filepath.Dir(socket)))
}

func TestServeReplacesADirectoryThatItCannotUseAndSaysWhyInOneLine(t *testing.T) {
	socket := mktemp(t)
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
	s := startServe(t, socket)
	own := s.stderr.Socket()
	require.NotEqual(t, socket, own)
	v := s.holdUp(t)
	require.NoError(t, s.cmd.Process.Signal(unix.SIGTERM))
	s.requireExit(t, 0, own)
	v.waitGone(t)
	require.Equal(t, wire.ReadyLine(own)+"step-runner: cannot use the directory of the socket, made "+
		filepath.Dir(own)+" instead: "+filepath.Dir(socket)+" has mode 0755: want a private directory, of mode 0700\n"+
		greeting(own)[len(wire.ReadyLine(own)):], s.stderr.String())
	require.Empty(t, remotetest.Names(t, filepath.Dir(socket)))
}

// Symptom: serve got ready, though it could run no job, and left a directory at its end.
func TestServeWithoutProcFailsAtOnceAndLeavesNothing(t *testing.T) {
	socket := mktemp(t)
	s := launchServe(t, socket, func(s *served) {
		args := append([]string{"unshare", "-Urm", "sh", "-ec", `mount -t tmpfs none /proc; exec "$@"`, "sh"}, s.cmd.Args...)
		path, err := exec.LookPath(args[0])
		if err == nil {
			err = exec.CommandContext(t.Context(), path, "-Urm", "mount", "-t", "tmpfs", "none", "/proc").Run()
		}
		if err != nil {
			t.Skip("part missing: namespaces: ", err)
		}
		s.cmd.Path, s.cmd.Args = path, args
	})
	require.NoError(t, s.stdin.Close())
	<-s.exited
	require.NotEqual(t, 0, s.cmd.ProcessState.ExitCode())
	require.Contains(t, s.stderr.String(), "serve: is /proc mounted on this machine? ")
	require.Empty(t, remotetest.Names(t, filepath.Dir(socket)))
}
