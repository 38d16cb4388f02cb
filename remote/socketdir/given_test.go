package socketdir

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

// mktemp makes a directory in tmp as the shell of GitLab Runner's manager does, and returns its socket's path.
func mktemp(t *testing.T, tmp string) string {
	t.Helper()
	dir, err := os.MkdirTemp(tmp, "step-runner.") //nolint:usetesting // t.TempDir is too long for a socket
	require.NoError(t, err)
	return filepath.Join(dir, wire.SocketName)
}

// nowhere are the places for tests whose directory must be taken.
var nowhere = []string{"/no/such/place"}

func TestGivenDirIsUsedAndLeftEmpty(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := mktemp(t, tmp)
	dir := filepath.Dir(socket)
	d, err := openGiven(t.Context(), socket, nowhere)
	require.NoError(t, err)
	require.NoError(t, d.Moved())
	require.Equal(t, socket, d.Socket())
	require.Equal(t, dir, filepath.Dir(d.Path()), "its files are not in the directory that was given")
	fi, err := os.Lstat(d.Path())
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, fi.Mode())
	require.Equal(t, []string{filepath.Base(d.Path())}, remotetest.Names(t, dir))
	require.Empty(t, remotetest.Names(t, d.Path()))

	outside := remotetest.FillStale(t, d.Path())
	theirs := filepath.Join(dir, "theirs")
	require.NoError(t, os.WriteFile(theirs, nil, 0o600))
	require.NoError(t, d.Remove(t.Context()))
	require.Equal(t, []string{"theirs"}, remotetest.Names(t, dir), "Remove removes what Open made, and no more")
	require.FileExists(t, outside)
}

func TestGivenDirLocksAndSweepsNothingOutside(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	neighbours := []string{"neighbour", wire.SocketBase, "step-runner.dead"}
	for _, name := range neighbours {
		require.NoError(t, os.MkdirAll(filepath.Join(tmp, name, "file"), 0o700))
	}
	socket := mktemp(t, tmp)
	d, err := openGiven(t.Context(), socket, nowhere)
	require.NoError(t, err)
	require.NoError(t, d.Sweep(t.Context()))
	for _, dir := range append(neighbours, ".", filepath.Base(filepath.Dir(socket))) {
		f, err := os.Open(filepath.Join(tmp, dir))
		require.NoError(t, err)
		require.NoError(t, filelock.Try(f), "%s is locked", dir)
		require.NoError(t, f.Close())
	}
	require.NoError(t, d.Remove(t.Context()))
	for _, name := range neighbours {
		require.DirExists(t, filepath.Join(tmp, name, "file"))
	}
}

func TestGivenDirMayBeGoneAtTheEnd(t *testing.T) {
	socket := mktemp(t, remotetest.ShortTemp(t))
	d, err := openGiven(t.Context(), socket, nowhere)
	require.NoError(t, err)
	remotetest.FillStale(t, d.Path())
	require.NoError(t, rmtree.Remove(filepath.Dir(socket)))
	require.NoError(t, d.Remove(t.Context()))
}

func TestGivenDirThatCannotBeUsedIsLeftAlone(t *testing.T) {
	at := func(name string) func(*testing.T, string) string {
		return func(t *testing.T, tmp string) string { return filepath.Join(tmp, name, wire.SocketName) }
	}
	for name, tc := range map[string]struct {
		path func(t *testing.T, tmp string) string // of a socket in tmp
		why  string
	}{
		"mode 0755": {func(t *testing.T, tmp string) string {
			socket := mktemp(t, tmp)
			require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
			return socket
		}, "has mode 0755: want a private directory, of mode 0700"},
		"mode 0500": {func(t *testing.T, tmp string) string {
			socket := mktemp(t, tmp)
			require.NoError(t, os.Chmod(filepath.Dir(socket), 0o500))
			return socket
		}, "has mode 0500"},
		"a file in it": {func(t *testing.T, tmp string) string {
			socket := mktemp(t, tmp)
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(socket), "file"), nil, 0o600))
			return socket
		}, `is not empty: it has "file"`},
		"a served socket": {func(t *testing.T, tmp string) string {
			socket := mktemp(t, tmp)
			ln, err := net.Listen("unix", socket)
			require.NoError(t, err)
			t.Cleanup(func() { ln.Close() })
			return socket
		}, "is not empty: it has \"step-runner.sock\""},
		"a symbolic link": {func(t *testing.T, tmp string) string {
			link := filepath.Join(tmp, "link")
			require.NoError(t, os.Symlink(filepath.Dir(mktemp(t, tmp)), link))
			return filepath.Join(link, wire.SocketName)
		}, "is a symbolic link"},
		"a regular file": {func(t *testing.T, tmp string) string {
			require.NoError(t, os.WriteFile(filepath.Join(tmp, "file"), nil, 0o600))
			return filepath.Join(tmp, "file", wire.SocketName)
		}, "is a regular file"},
		"of another user": {func(t *testing.T, tmp string) string {
			remotetest.NeedRoot(t)
			socket := mktemp(t, tmp)
			require.NoError(t, os.Lchown(filepath.Dir(socket), remotetest.Nobody, remotetest.Nobody))
			return socket
		}, "belongs to user 65534, not to us"},
		"in a place that anybody can rearrange": {func(t *testing.T, tmp string) string {
			require.NoError(t, os.Chmod(tmp, 0o777))
			return mktemp(t, tmp)
		}, "any user can replace the files in it"},
		"on a full disk": {func(t *testing.T, tmp string) string {
			full := remotetest.TinyFS(t)
			socket := mktemp(t, full)
			remotetest.FillDisk(t, full)
			return socket
		}, "no space left on device"},
		"on a disk without room for a file": {func(t *testing.T, tmp string) string {
			full := remotetest.TinyFS(t)
			require.ErrorIs(t, os.WriteFile(filepath.Join(full, "big"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
			return mktemp(t, full)
		}, "no space left on device"},
		"on a read-only disk": {func(t *testing.T, tmp string) string {
			disk := remotetest.TinyFS(t)
			socket := mktemp(t, disk)
			require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			return socket
		}, "read-only file system"},
		"missing":       {at("none"), "no such file or directory"},
		"missing place": {at("none/none"), "(it must exist)"},
		"relative":      {func(*testing.T, string) string { return "dir/step-runner.sock" }, "is not absolute"},
		"empty":         {func(*testing.T, string) string { return "" }, "is not absolute"},
		"not clean":     {func(_ *testing.T, tmp string) string { return tmp + "/./d/s" }, "is not clean"},
		"in the root":   {func(*testing.T, string) string { return "/step-runner.sock" }, "/"},
		"too long": {func(t *testing.T, tmp string) string {
			dir := filepath.Join(tmp, strings.Repeat("x", 100))
			require.NoError(t, os.Mkdir(dir, 0o700))
			return filepath.Join(dir, wire.SocketName)
		}, "a unix socket allows 107"},
		"with a control character": {at("a\nb"), "has a control character"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp, own := remotetest.ShortTemp(t), remotetest.ShortTemp(t)
			socket := tc.path(t, tmp)
			before := tree(t, tmp)
			d, err := openGiven(t.Context(), socket, []string{"/no/such/place", own})
			require.NoError(t, err)
			require.ErrorContains(t, d.Moved(), tc.why)
			require.NotContains(t, d.Moved().Error(), "\n")
			require.Equal(t, filepath.Join(own, wire.SocketBase), filepath.Dir(d.Path()))
			require.Equal(t, filepath.Join(d.Path(), wire.SocketName), d.Socket())
			ln, err := Listen(d.Socket(), nil)
			require.NoError(t, err)
			require.NoError(t, ln.Close())
			require.NoError(t, d.Remove(t.Context()))
			require.Empty(t, remotetest.Names(t, filepath.Join(own, wire.SocketBase)))
			require.Equal(t, before, tree(t, tmp), "something of its caller's has changed")
		})
	}
}

// tree returns the modes and names of all files in dir.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		require.NoError(t, err)
		fi, err := entry.Info()
		require.NoError(t, err)
		all = append(all, fmt.Sprintf("%v %s", fi.Mode(), path))
		return nil
	}))
	return all
}

func TestOneOfManyServesGetsAGivenDir(t *testing.T) {
	socket, own := mktemp(t, remotetest.ShortTemp(t)), remotetest.ShortTemp(t)
	dirs := make([]*Dir, 10)
	var wg sync.WaitGroup
	for i := range dirs {
		wg.Go(func() {
			var err error
			if dirs[i], err = openGiven(t.Context(), socket, []string{own}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sockets := map[string]bool{}
	for _, d := range dirs {
		require.Equal(t, d.Socket() == socket, d.Moved() == nil)
		sockets[d.Socket()] = true
	}
	require.True(t, sockets[socket], "nobody got it")
	require.Len(t, sockets, len(dirs), "two share a socket")
	for _, d := range dirs {
		require.NoError(t, d.Remove(t.Context()))
	}
	require.Empty(t, remotetest.Names(t, filepath.Dir(socket)))
}

func TestGivenDirIsAnErrorOnlyIfNoPlaceHasRoom(t *testing.T) {
	_, err := openGiven(t.Context(), "/no/dir/step-runner.sock", []string{"/no/place", "/dev/null"})
	require.ErrorContains(t, err, "there is no private directory for the socket")
	for _, place := range []string{"/no (it must exist)", "/no/place (it must exist)", "/dev/null"} {
		require.ErrorContains(t, err, place)
	}
}

func TestOnlyPathsOfABuildAreOurs(t *testing.T) {
	for path, ours := range map[string]bool{
		"/tmp/gitlab-runner-steps/1/step-runner.sock":        true,
		"/tmp/gitlab-runner-steps-1000/1/step-runner.sock":   true,
		"/tmp/gitlab-runner-steps/a b/step-runner.sock":      true, // with an error
		"/tmp/step-runner.Ab12Cd34/step-runner.sock":         false,
		"/tmp/gitlab-runner-steps/step-runner.sock":          false,
		"/tmp/gitlab-runner-steps-me/1/step-runner.sock":     false,
		"/tmp/gitlab-runner-steps/1/deeper/step-runner.sock": false,
		"/tmp/x.sock": false,
		"relative":    false,
		"":            false,
	} {
		require.Equal(t, ours, IsBuild(path), path)
	}
}

func TestGivenDirIsUsedWithAnyUmask(t *testing.T) {
	socket := mktemp(t, remotetest.ShortTemp(t))
	old := unix.Umask(0o777)
	d, err := openGiven(t.Context(), socket, nowhere)
	unix.Umask(old)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600))
	require.NoError(t, d.Remove(t.Context()))
	require.Empty(t, remotetest.Names(t, filepath.Dir(socket)))
}
