package runnertest

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// BuildSocket returns the path of a socket of a new build below tmp, the directory for temporary files of a relay. The
// end of the test removes the build's directory.
func BuildSocket(t testing.TB, tmp string) string {
	t.Helper()
	path, err := wire.SocketPath(tmp, wire.BuildID(rand.Text()))
	require.NoError(t, err)
	dir := filepath.Dir(path)
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o700))
	// A relay that starts removes directories without a lock, so this one is locked before it gets its name.
	made, err := os.MkdirTemp(tmp, "build") //nolint:usetesting // on the same file system
	require.NoError(t, err)
	hold, err := os.Open(made)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(hold.Fd()), unix.LOCK_EX))
	require.NoError(t, os.Rename(made, dir))
	t.Cleanup(func() {
		hold.Close()
		require.NoError(t, os.RemoveAll(dir))
	})
	return path
}
