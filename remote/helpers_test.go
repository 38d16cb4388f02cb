package remote

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

// shortTemp returns a fresh directory with a path short enough for a socket below it, removed at the end.
func shortTemp(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sm") //nolint:usetesting // that of t.TempDir holds the test's name: too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// socketIn returns the path of build id's socket below tmp.
func socketIn(t testing.TB, tmp, id string) string {
	t.Helper()
	path, err := wire.SocketPath(tmp, wire.BuildID(id))
	require.NoError(t, err)
	return path
}

// needRoot skips the test where it cannot act as other users.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: this test changes owners, which only root can")
	}
}

// nobody is a user that is not the one running the tests.
const nobody = 65534

// greeting is what a serve without a secret says, if all is well.
func greeting(socket string) string {
	return wire.ReadyLine(socket) + fmt.Sprintf(
		"step-runner: no secret guards this socket: every process of user %d can read, run and cancel jobs by it (--secret-stdin)\n", os.Geteuid())
}

// names returns the names in dir.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := []string{}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func requireGone(t testing.TB, path string) {
	t.Helper()
	_, err := os.Lstat(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// fillStale puts into dir what a careless job may leave: closed directories, symbolic links that lead
// out, many files. It returns a file outside that must survive.
func fillStale(t testing.TB, dir string) (outside string) {
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

// output collects what a process writes and tells when the ready marker has come.
type output struct {
	mu      sync.Mutex // guards the following
	text    bytes.Buffer
	marker  wire.MarkerScanner
	ready   chan struct{} // closed with the marker
	isReady bool
}

func newOutput() *output { return &output{ready: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	o.marker.Write(p)
	if _, found := o.marker.Path(); found && !o.isReady {
		o.isReady = true
		close(o.ready)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// socket is the path the marker showed.
func (o *output) socket() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	path, _ := o.marker.Path()
	return path
}

// role returns a command that runs this test binary as the role name. It is killed when ctx ends.
func role(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// A program built with the race detector otherwise sleeps for a second before it exits.
	cmd.Env = append(os.Environ(), roleVar+"="+name, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// repeat is a recognisable text of n bytes.
func repeat(n int) string { return strings.Repeat("stepmux ", n/8+1)[:n] }
