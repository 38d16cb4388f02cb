package remote

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// mustOpen opens the directory of build id below tmp; it is removed when the test ends, if not before.
func mustOpen(t *testing.T, tmp, id string) *sockDir {
	t.Helper()
	d, err := openSockDir(t.Context(), socketIn(t, tmp, id))
	require.NoError(t, err)
	return d
}

func TestSockDirIsPrivateFreshAndGoneInTheEnd(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "42")
	require.Equal(t, socketIn(t, tmp, "42"), d.socket)
	for _, dir := range []string{d.path(), d.base.path} {
		fi, err := os.Lstat(dir)
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|0o700, fi.Mode(), dir)
	}
	require.Empty(t, names(t, d.path()))
	outside := fillStale(t, d.path())
	require.NoError(t, d.remove(t.Context()))
	require.Empty(t, names(t, filepath.Join(tmp, wire.SocketBase)))
	require.FileExists(t, outside)
}

func TestSockDirOfTheSameBuildIsRefusedWhileServed(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "42")
	_, err := openSockDir(t.Context(), socketIn(t, tmp, "42"))
	require.ErrorContains(t, err, "create directory of build 42 in "+d.base.path)
	require.ErrorContains(t, err, "already being served on this machine")
	require.NoError(t, d.remove(t.Context()))
	require.NoError(t, mustOpen(t, tmp, "42").remove(t.Context()))
}

func TestSockDirOfADeadServeIsReplaced(t *testing.T) {
	tmp := shortTemp(t)
	dead := filepath.Dir(socketIn(t, tmp, "42"))
	require.NoError(t, os.MkdirAll(dead, 0o700))
	outside := fillStale(t, dead)
	d := mustOpen(t, tmp, "42")
	require.Empty(t, names(t, d.path()), "not fresh")
	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, []string{"42"}, names(t, d.base.path))
	require.FileExists(t, outside)
	require.NoError(t, d.remove(t.Context()))
}

func TestSockDirRefusesWhatIsNotADirectoryOfOurs(t *testing.T) {
	put := map[string]func(t *testing.T, path string){
		"a regular file": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("keep"), 0o600))
		},
		"a symbolic link": func(t *testing.T, path string) {
			require.NoError(t, os.Symlink(t.TempDir(), path))
		},
		"a named pipe": func(t *testing.T, path string) {
			require.NoError(t, unix.Mkfifo(path, 0o600))
		},
		"a directory, which belongs to user 65534": func(t *testing.T, path string) {
			needRoot(t)
			require.NoError(t, os.Mkdir(path, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(path, "theirs"), nil, 0o600))
			require.NoError(t, os.Lchown(path, nobody, nobody))
		},
	}
	for what, make := range put {
		for _, where := range []string{"base", "build"} {
			t.Run(where+" is "+what, func(t *testing.T) {
				tmp := shortTemp(t)
				socket := socketIn(t, tmp, "42")
				path := filepath.Dir(socket)
				if where == "base" {
					path = filepath.Dir(path)
				} else {
					require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
				}
				make(t, path)
				before, err := os.Lstat(path)
				require.NoError(t, err)

				d, err := openSockDir(t.Context(), socket)
				if where == "base" && strings.Contains(what, "belongs to") {
					// Another user was first: that must not keep us from serving.
					require.NoError(t, err)
					want := filepath.Join(tmp, fmt.Sprintf("%s-%d", wire.SocketBase, os.Geteuid()), "42", wire.SocketName)
					require.Equal(t, want, d.socket)
					require.True(t, wire.SameBuildSocket(socket, d.socket))
					require.NoError(t, d.remove(t.Context()))
				} else {
					require.ErrorContains(t, err, path+" is "+what)
					require.ErrorContains(t, err, "remove it, or use another temporary directory")
				}
				after, err := os.Lstat(path)
				require.NoError(t, err)
				require.True(t, os.SameFile(before, after), "it was replaced")
				require.Equal(t, before.Mode(), after.Mode())
				if after.IsDir() {
					require.Equal(t, []string{"theirs"}, names(t, path))
				}
			})
		}
	}
}

func TestSockDirNeedsOneOfTheTwoBases(t *testing.T) {
	needRoot(t)
	tmp := shortTemp(t)
	own := fmt.Sprintf("%s-%d", wire.SocketBase, os.Geteuid())
	for _, name := range []string{wire.SocketBase, own} {
		require.NoError(t, os.Mkdir(filepath.Join(tmp, name), 0o700))
		require.NoError(t, os.Lchown(filepath.Join(tmp, name), nobody, nobody))
	}
	_, err := openSockDir(t.Context(), socketIn(t, tmp, "42"))
	require.ErrorContains(t, err, filepath.Join(tmp, own)+" is a directory, which belongs to user 65534, not to us")
}

func TestSockDirTightensABaseOfOurs(t *testing.T) {
	tmp := shortTemp(t)
	base := filepath.Join(tmp, wire.SocketBase)
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.Chmod(base, 0o777))
	d := mustOpen(t, tmp, "42")
	fi, err := os.Stat(base)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
	require.NoError(t, d.remove(t.Context()))
}

func TestSockDirRefusesATemporaryDirectoryAnybodyCanRearrange(t *testing.T) {
	tmp := shortTemp(t)
	require.NoError(t, os.Chmod(tmp, 0o777))
	_, err := openSockDir(t.Context(), socketIn(t, tmp, "42"))
	require.ErrorContains(t, err, "chmod +t "+tmp)
	require.Empty(t, names(t, tmp))
	require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))
	require.NoError(t, mustOpen(t, tmp, "42").remove(t.Context()))
}

func TestSockDirRefusesPathsThatAreNotABuilds(t *testing.T) {
	tmp := shortTemp(t)
	base := filepath.Join(tmp, wire.SocketBase)
	for path, want := range map[string]string{
		"/tmp/x.sock":                                "want <tmp>/gitlab-runner-steps/<build id>/step-runner.sock",
		"/x.sock":                                    "want <tmp>/gitlab-runner-steps/<build id>/step-runner.sock",
		tmp + "/1/" + wire.SocketName:                "want <tmp>/gitlab-runner-steps/<build id>/step-runner.sock",
		base + "/" + wire.SocketName:                 "want <tmp>/gitlab-runner-steps/<build id>/step-runner.sock",
		base + "-me/1/" + wire.SocketName:            "want <tmp>/gitlab-runner-steps/<build id>/step-runner.sock",
		base + "/a b/" + wire.SocketName:             "invalid build ID",
		base + "/" + strings.Repeat("x", 300) + "/s": "a unix socket allows 107",
		base + "/" + strings.Repeat("x", 65) + "/s":  "invalid build ID",
		base + "/../1/s":                             "is not clean",
		"gitlab-runner-steps/1/s":                    "is not absolute",
		"":                                           "is not absolute",
		"/no/such/dir/gitlab-runner-steps/1/" + wire.SocketName: "/no/such/dir (it must exist)",
		"/dev/null/gitlab-runner-steps/1/" + wire.SocketName:    "not a directory",
	} {
		_, err := openSockDir(t.Context(), path)
		require.ErrorContains(t, err, want, path)
		require.Empty(t, names(t, tmp), path)
	}
}

func TestSockDirStaysWithinTheSocketBoundWhenMovedToTheUsersBase(t *testing.T) {
	needRoot(t)
	tmp := shortTemp(t)
	base := filepath.Join(tmp, wire.SocketBase)
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.Lchown(base, nobody, nobody))
	const id = "1"
	name := strings.Repeat("s", wire.MaxSocketPath-len(base+"/"+id+"/"))
	_, err := openSockDir(t.Context(), filepath.Join(base, id, name))
	require.ErrorContains(t, err, "a unix socket allows 107")
}

func TestSockDirsOfManyBuildsComeAndGoAtOnce(t *testing.T) {
	tmp := shortTemp(t)
	var wg sync.WaitGroup
	errs := make(chan error, 50)
	for i := range 50 {
		socket := socketIn(t, tmp, fmt.Sprintf("build-%d", i))
		wg.Go(func() {
			for range 5 {
				d, err := openSockDir(t.Context(), socket)
				if err != nil {
					errs <- err
					return
				}
				sweepErr := d.base.sweep(t.Context())
				_, statErr := os.Lstat(d.path()) // no sweep of the others took it
				removeErr := d.remove(t.Context())
				for _, err := range []error{sweepErr, statErr, removeErr} {
					if err != nil {
						errs <- err
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, names(t, filepath.Join(tmp, wire.SocketBase)))
}

func TestSockDirOfOneBuildIsHeldByOneAtATime(t *testing.T) {
	tmp := shortTemp(t)
	socket := socketIn(t, tmp, "42")
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		held int
		won  int
	)
	for range 20 {
		wg.Go(func() {
			d, err := openSockDir(t.Context(), socket)
			if err != nil {
				if !strings.Contains(err.Error(), "already being served") {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			held++
			won++
			if held > 1 {
				t.Error("two hold the directory of one build")
			}
			mu.Unlock()
			if err := d.base.sweep(t.Context()); err != nil {
				t.Error(err)
			}
			mu.Lock()
			held--
			mu.Unlock()
			if err := d.remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Positive(t, won)
}

func TestSockDirWaitsForTheBaseNoLongerThanItsContext(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "holder")
	require.NoError(t, d.base.lock(t.Context()))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLeash)
	_, err := openSockDir(ctx, socketIn(t, tmp, "42"))
	require.ErrorIs(t, err, errLeash)
	require.ErrorContains(t, err, "lock socket base "+d.base.path)
	unlock(d.base.dir)
	require.NoError(t, d.remove(t.Context()))
	require.Empty(t, names(t, d.base.path))
}

func TestSockDirRemoveLeavesADirectoryThatTookItsPlace(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "42")
	require.NoError(t, os.Rename(d.path(), d.path()+".moved"))
	require.NoError(t, os.Mkdir(d.path(), 0o700))
	require.NoError(t, d.remove(t.Context()))
	require.DirExists(t, d.path())
}

func TestSockDirSaysThatTheDiskIsFull(t *testing.T) {
	tmp := tinyFS(t)
	d := mustOpen(t, tmp, "first")
	fillDisk(t, d.path())
	_, err := openSockDir(t.Context(), socketIn(t, tmp, "42"))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "create directory of build 42")
	require.ErrorContains(t, err, "free space or inodes on the file system of "+d.base.path)
	require.Equal(t, []string{"first"}, names(t, d.base.path))
	require.NoError(t, d.remove(t.Context()))
}

func TestSockDirMakesRoomByRemovingWhatTheDeadLeft(t *testing.T) {
	tmp := tinyFS(t)
	dead := filepath.Dir(socketIn(t, tmp, "dead"))
	require.NoError(t, os.MkdirAll(dead, 0o700))
	fillDisk(t, dead)
	d := mustOpen(t, tmp, "42")
	require.Equal(t, []string{"42"}, names(t, d.base.path))
	require.NoError(t, d.remove(t.Context()))
}

// tinyFS mounts a file system with room for little.
func tinyFS(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can mount a file system to fill")
	}
	dir := shortTemp(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=32,mode=0700"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fillDisk makes files in dir until there is no room for another.
func fillDisk(t *testing.T, dir string) {
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

func TestSweepRemovesWhatTheDeadLeftAndNothingElse(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "me")
	living := mustOpen(t, tmp, "living")
	base := d.base.path
	in := func(name string) string { return filepath.Join(base, name) }

	var outside []string
	for _, name := range []string{"dead-1", "dead-2", ".hidden", scratchName(), "not a build"} {
		require.NoError(t, os.Mkdir(in(name), 0o700))
		outside = append(outside, fillStale(t, in(name)))
	}
	require.NoError(t, os.Chmod(in("dead-2"), 0)) // as a job can

	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside[0]), in("link")))
	require.NoError(t, unix.Mkfifo(in("fifo"), 0o600))
	kept := []string{"fifo", "file", "link", "living", "me", "neighbour"}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Mkdir(in("their"), 0o700))
		require.NoError(t, os.Lchown(in("their"), nobody, nobody))
		kept = append(kept, "their")
	}
	// Another program's serve: no lock, but it listens.
	require.NoError(t, os.Mkdir(in("neighbour"), 0o700))
	ln, err := net.Listen("unix", filepath.Join(in("neighbour"), wire.SocketName))
	require.NoError(t, err)

	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, kept, names(t, base))
	for _, path := range outside {
		require.FileExists(t, path)
	}

	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as when its process is killed
	require.NoError(t, ln.Close())
	require.NoError(t, d.base.sweep(t.Context()))
	require.NotContains(t, names(t, base), "neighbour")
	require.NoError(t, living.remove(t.Context()))
	require.NoError(t, d.remove(t.Context()))
}

func TestSweepEndsWithItsContext(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "me")
	require.NoError(t, os.Mkdir(filepath.Join(d.base.path, "dead"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, d.base.sweep(ctx))
	require.Equal(t, []string{"dead", "me"}, names(t, d.base.path))
	require.NoError(t, d.remove(t.Context()))
}

func TestSweepLeavesADirectoryThatIsBeingMade(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "me")
	maker, err := openBase(d.base.path)
	require.NoError(t, err)
	defer maker.close()
	require.NoError(t, maker.lock(t.Context()))
	scratch := scratchName()
	require.NoError(t, maker.root.Mkdir(scratch, 0o700)) // not locked yet
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.NoError(t, d.base.sweep(ctx))
	require.Equal(t, []string{"me", scratch}, names(t, d.base.path))
	unlock(maker.dir) // it died
	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, []string{"me"}, names(t, d.base.path))
	require.NoError(t, d.remove(t.Context()))
}

func TestSweepOfAHugeBaseIsBounded(t *testing.T) {
	tmp := shortTemp(t)
	d := mustOpen(t, tmp, "me")
	const all = maxSweep + 500
	for i := range all {
		require.NoError(t, os.Mkdir(filepath.Join(d.base.path, fmt.Sprint(i)), 0o700))
	}
	require.NoError(t, d.base.sweep(t.Context()))
	left := len(names(t, d.base.path)) - 1
	require.Less(t, left, all-maxSweep+130)
	require.Greater(t, left, all-maxSweep-130, "not bounded")
	require.NoError(t, d.remove(t.Context()))
}

func TestRemoveTreeReportsWhatItCannotRemoveAndRemovesTheRest(t *testing.T) {
	dir := t.TempDir()
	needRoot(t)
	busy := filepath.Join(dir, "tree", "m-busy")
	require.NoError(t, os.MkdirAll(busy, 0o700))
	for _, name := range []string{"a", "z"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "tree", name), 0o700))
	}
	if err := unix.Mount("tmpfs", busy, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(busy, unix.MNT_DETACH)) })
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	err = removeTree(t.Context(), root, "tree")
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "m-busy")
	require.Equal(t, []string{"m-busy"}, names(t, filepath.Join(dir, "tree")))
}
