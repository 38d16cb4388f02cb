// Package remotetest has helpers that several tests of the VM's end use: short directories for sockets, full disks,
// directories that careless jobs have left, and commands that run as another user.
package remotetest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// ShortTemp returns a fresh directory with a path short enough for a socket below it. It is removed at the end.
func ShortTemp(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sm") //nolint:usetesting // t.TempDir has the test's name in it: too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { // the init of a killed serve may still be removing files there
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, time.Minute, 5*time.Millisecond)
	})
	return dir
}

// SocketIn returns the path of build id's socket below tmp.
func SocketIn(t testing.TB, tmp, id string) string {
	t.Helper()
	path, err := wire.SocketPath(tmp, wire.BuildID(id))
	require.NoError(t, err)
	return path
}

// NeedRoot skips the test if it cannot act as other users.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: this test changes owners, which only root can")
	}
}

// Nobody is a user that does not run the tests.
const Nobody = 65534

// AsNobody makes cmd, which runs this test binary, run as another user.
func AsNobody(t testing.TB, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir := ShortTemp(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	binary := filepath.Join(dir, "test") // the test binary's own directory is private
	text, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	syscall.ForkLock.RLock() // else a process that is being started has the file open for writing: ETXTBSY
	err = os.WriteFile(binary, text, 0o755)
	syscall.ForkLock.RUnlock()
	require.NoError(t, err)
	cmd.Path, cmd.Dir = binary, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
	return cmd
}

// Names returns the names in dir.
func Names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := []string{}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// Processes returns the PID and the command line of each process that has dir in its command line, or works there.
func Processes(dir string) (found []string) {
	procs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, p := range procs {
		line, _ := os.ReadFile(filepath.Join(p, "cmdline")) // it may have ended
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		if strings.Contains(string(line), dir) || strings.HasPrefix(cwd, dir) {
			found = append(found, filepath.Base(p)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// RequireGone requires that there is no file at path.
func RequireGone(t testing.TB, path string) {
	t.Helper()
	_, err := os.Lstat(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Eventually waits until is returns true, for conditions without an event to wait for.
func Eventually(t testing.TB, is func() bool, message string) {
	t.Helper()
	require.Eventually(t, is, time.Minute, time.Millisecond, message)
}

// Gate makes a named pipe at path and returns a line of shell that waits there, however often, until open is called. It
// costs nothing to wait there, in contrast to a loop with a sleep.
func Gate(t testing.TB, path string) (wait string, open func()) {
	t.Helper()
	require.NoError(t, unix.Mkfifo(path, 0o600))
	require.NoError(t, os.Chmod(path, 0o666)) // jobs of other users wait there too
	return ": <" + path, func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0) // Linux does not wait for a reader then
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
	}
}

// FillStale fills dir like a careless job: with directories without permissions, symbolic links that lead out, and many
// files. It returns a file outside that must survive.
func FillStale(t testing.TB, dir string) (outside string) {
	t.Helper()
	outside = filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(outside, []byte("precious"), 0o600))
	closed := filepath.Join(dir, "work", "mod", "closed")
	require.NoError(t, os.MkdirAll(closed, 0o700))
	for range 3 {
		f, err := os.CreateTemp(closed, "f*")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "file-link")))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(closed, "dir-link")))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	require.NoError(t, os.Chmod(closed, 0o500))
	require.NoError(t, os.Chmod(filepath.Dir(closed), 0))
	return outside
}

// TinyFS mounts a file system with little room.
func TinyFS(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can mount a file system to fill")
	}
	dir := ShortTemp(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=32,mode=0700"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// FillDisk makes files in dir until there is no room for another.
func FillDisk(t testing.TB, dir string) {
	t.Helper()
	for i := range 1000 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return
		}
		require.NoError(t, f.Close())
	}
	t.Fatal("the file system has no end")
}

// BlockingPair returns two connected ends in blocking mode, like the stdio of a process. kind is pipe or socket.
func BlockingPair(t testing.TB, kind string) (near, far *os.File) {
	t.Helper()
	var fds [2]int
	var err error
	if kind == "socket" {
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	} else {
		err = unix.Pipe2(fds[:], unix.O_CLOEXEC)
	}
	require.NoError(t, err)
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

// Nonblocking reports the mode of the open file behind f.
func Nonblocking(t testing.TB, f *os.File) bool {
	t.Helper()
	rc, err := f.SyscallConn()
	require.NoError(t, err)
	var flags int
	require.NoError(t, rc.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) }))
	require.NoError(t, err)
	return flags&unix.O_NONBLOCK != 0
}

// Repeat returns a recognisable text of n bytes.
func Repeat(n int) string { return strings.Repeat("stepmux ", n/8+1)[:n] }

// Output collects the stderr of a process and closes Ready when the ready marker has come.
type Output struct {
	Ready chan struct{} // closed with the marker

	mu     sync.Mutex // guards the following
	text   bytes.Buffer
	marker wire.MarkerScanner
	ready  sync.Once
}

// NewOutput returns an empty Output.
func NewOutput() *Output { return &Output{Ready: make(chan struct{})} }

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	_, _ = o.marker.Write(p)
	if _, found := o.marker.Path(); found {
		o.ready.Do(func() { close(o.Ready) })
	}
	return len(p), nil
}

// String returns the text so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Socket returns the path that the marker showed.
func (o *Output) Socket() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	path, _ := o.marker.Path()
	return path
}
