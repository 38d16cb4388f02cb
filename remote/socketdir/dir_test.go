package socketdir

import (
	"context"
	"errors"
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

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

// mustOpen opens the directory of build id below tmp; it is removed when the test ends, if not before.
func mustOpen(t *testing.T, tmp, id string) *Dir {
	t.Helper()
	d, err := Open(t.Context(), remotetest.SocketIn(t, tmp, id))
	require.NoError(t, err)
	return d
}

func TestSockDirIsPrivateFreshAndGoneInTheEnd(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "42")
	require.Equal(t, remotetest.SocketIn(t, tmp, "42"), d.socket)
	for _, dir := range []string{d.Path(), d.base.path} {
		fi, err := os.Lstat(dir)
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|0o700, fi.Mode(), dir)
	}
	require.Empty(t, remotetest.Names(t, d.Path()))
	outside := remotetest.FillStale(t, d.Path())
	require.NoError(t, d.Remove(t.Context()))
	require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
	require.FileExists(t, outside)
}

func TestSockDirOfTheSameBuildIsRefusedWhileServed(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "42")
	_, err := Open(t.Context(), remotetest.SocketIn(t, tmp, "42"))
	require.ErrorContains(t, err, "create directory of build 42 in "+d.base.path)
	require.ErrorContains(t, err, "already being served on this machine")
	require.NoError(t, d.Remove(t.Context()))
	require.NoError(t, mustOpen(t, tmp, "42").Remove(t.Context()))
}

func TestSockDirOfADeadServeIsReplaced(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	dead := filepath.Dir(remotetest.SocketIn(t, tmp, "42"))
	require.NoError(t, os.MkdirAll(dead, 0o700))
	outside := remotetest.FillStale(t, dead)
	d := mustOpen(t, tmp, "42")
	require.Empty(t, remotetest.Names(t, d.Path()), "not fresh")
	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, []string{"42"}, remotetest.Names(t, d.base.path))
	require.FileExists(t, outside)
	require.NoError(t, d.Remove(t.Context()))
}

//stepmux:faults vulnerabilities | Others make our directories in `/tmp` first, or links in their place | a foreign file
//stepmux:more is refused, and never removed
//stepmux:with remote/socketdir.TestSockDirRefusesATemporaryDirectoryAnybodyCanRearrange
//stepmux:with remote/step/fetch.TestCacheOfAnotherUserIsRefused
func TestSockDirRefusesAnythingButADirectoryOfOurs(t *testing.T) {
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
			remotetest.NeedRoot(t)
			require.NoError(t, os.Mkdir(path, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(path, "theirs"), nil, 0o600))
			require.NoError(t, os.Lchown(path, remotetest.Nobody, remotetest.Nobody))
		},
	}
	for what, make := range put {
		for _, where := range []string{"base", "build"} {
			t.Run(where+" is "+what, func(t *testing.T) {
				tmp := remotetest.ShortTemp(t)
				socket := remotetest.SocketIn(t, tmp, "42")
				path := filepath.Dir(socket)
				if where == "base" {
					path = filepath.Dir(path)
				} else {
					require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
				}
				make(t, path)
				before, err := os.Lstat(path)
				require.NoError(t, err)

				d, err := Open(t.Context(), socket)
				if where == "base" && strings.Contains(what, "belongs to") {
					// Another user was first: that must not keep us from serving.
					require.NoError(t, err)
					want := filepath.Join(tmp, fmt.Sprintf("%s-%d", wire.SocketBase, os.Geteuid()), "42", wire.SocketName)
					require.Equal(t, want, d.socket)
					require.True(t, wire.SameBuildSocket(socket, d.socket))
					require.NoError(t, d.Remove(t.Context()))
				} else {
					require.ErrorContains(t, err, path+" is "+what)
					require.ErrorContains(t, err, "remove it, or use another temporary directory")
				}
				after, err := os.Lstat(path)
				require.NoError(t, err)
				require.True(t, os.SameFile(before, after), "it was replaced")
				require.Equal(t, before.Mode(), after.Mode())
				if after.IsDir() {
					require.Equal(t, []string{"theirs"}, remotetest.Names(t, path))
				}
			})
		}
	}
}

func TestSockDirNeedsOneOfTheTwoBases(t *testing.T) {
	remotetest.NeedRoot(t)
	tmp := remotetest.ShortTemp(t)
	own := fmt.Sprintf("%s-%d", wire.SocketBase, os.Geteuid())
	for _, name := range []string{wire.SocketBase, own} {
		require.NoError(t, os.Mkdir(filepath.Join(tmp, name), 0o700))
		require.NoError(t, os.Lchown(filepath.Join(tmp, name), remotetest.Nobody, remotetest.Nobody))
	}
	_, err := Open(t.Context(), remotetest.SocketIn(t, tmp, "42"))
	require.ErrorContains(t, err, filepath.Join(tmp, own)+" is a directory, which belongs to user 65534, not to us")
}

func TestSockDirTightensABaseOfOurs(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	base := filepath.Join(tmp, wire.SocketBase)
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.Chmod(base, 0o777))
	d := mustOpen(t, tmp, "42")
	fi, err := os.Stat(base)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
	require.NoError(t, d.Remove(t.Context()))
}

func TestSockDirRefusesATemporaryDirectoryAnybodyCanRearrange(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	require.NoError(t, os.Chmod(tmp, 0o777))
	_, err := Open(t.Context(), remotetest.SocketIn(t, tmp, "42"))
	require.ErrorContains(t, err, "chmod +t "+tmp)
	require.Empty(t, remotetest.Names(t, tmp))
	require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))
	require.NoError(t, mustOpen(t, tmp, "42").Remove(t.Context()))
}

func TestSockDirRefusesPathsThatAreNotABuilds(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
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
		_, err := Open(t.Context(), path)
		require.ErrorContains(t, err, want, path)
		require.Empty(t, remotetest.Names(t, tmp), path)
	}
}

func TestSockDirStaysWithinTheSocketBoundWhenMovedToTheUsersBase(t *testing.T) {
	remotetest.NeedRoot(t)
	tmp := remotetest.ShortTemp(t)
	base := filepath.Join(tmp, wire.SocketBase)
	require.NoError(t, os.Mkdir(base, 0o700))
	require.NoError(t, os.Lchown(base, remotetest.Nobody, remotetest.Nobody))
	const id = "1"
	name := strings.Repeat("s", wire.MaxSocketPath-len(base+"/"+id+"/"))
	_, err := Open(t.Context(), filepath.Join(base, id, name))
	require.ErrorContains(t, err, "a unix socket allows 107")
}

func TestSockDirsOfManyBuildsComeAndGoAtOnce(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	var wg sync.WaitGroup
	errs := make(chan error, 50)
	for i := range 50 {
		socket := remotetest.SocketIn(t, tmp, fmt.Sprintf("build-%d", i))
		wg.Go(func() {
			for range 5 {
				d, err := Open(t.Context(), socket)
				if err != nil {
					errs <- err
					return
				}
				sweepErr := d.base.sweep(t.Context())
				_, statErr := os.Lstat(d.Path()) // no sweep of the others took it
				removeErr := d.Remove(t.Context())
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
	require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
}

func TestSockDirOfOneBuildIsHeldByOneAtATime(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "42")
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		held int
		won  int
	)
	for range 20 {
		wg.Go(func() {
			d, err := Open(t.Context(), socket)
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
			if err := d.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Positive(t, won)
}

func TestSockDirWaitsForTheBaseNoLongerThanItsContext(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "holder")
	require.NoError(t, d.base.lock(t.Context()))
	errStop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	_, err := Open(ctx, remotetest.SocketIn(t, tmp, "42"))
	require.ErrorIs(t, err, errStop)
	require.ErrorContains(t, err, "lock socket base "+d.base.path)
	filelock.Unlock(d.base.dir)
	require.NoError(t, d.Remove(t.Context()))
	require.Empty(t, remotetest.Names(t, d.base.path))
}

func TestSockDirRemoveLeavesADirectoryThatTookItsPlace(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "42")
	require.NoError(t, os.Rename(d.Path(), d.Path()+".moved"))
	require.NoError(t, os.Mkdir(d.Path(), 0o700))
	require.NoError(t, d.Remove(t.Context()))
	require.DirExists(t, d.Path())
	require.NoDirExists(t, d.Path()+".moved")
}

// Symptom: Remove ignored its context if a job had moved the directory.
func TestSockDirRemoveEndsWithItsContext(t *testing.T) {
	for name, moved := range map[string]bool{"at its place": false, "moved by a job": true} {
		t.Run(name, func(t *testing.T) {
			tmp := remotetest.ShortTemp(t)
			d, err := Open(t.Context(), remotetest.SocketIn(t, tmp, "42"))
			require.NoError(t, err)
			path := d.Path()
			require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
			if moved {
				require.NoError(t, os.Rename(path, path+".moved"))
			}
			errStop := errors.New("stop")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errStop)
			require.ErrorIs(t, d.Remove(ctx), errStop)
			require.Len(t, remotetest.Names(t, filepath.Dir(path)), 1)
		})
	}
}

func TestSockDirSaysThatTheDiskIsFull(t *testing.T) {
	tmp := remotetest.TinyFS(t)
	d := mustOpen(t, tmp, "first")
	remotetest.FillDisk(t, d.Path())
	_, err := Open(t.Context(), remotetest.SocketIn(t, tmp, "42"))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "create directory of build 42")
	require.ErrorContains(t, err, "free space or inodes on the file system of "+d.base.path)
	require.Equal(t, []string{"first"}, remotetest.Names(t, d.base.path))
	require.NoError(t, d.Remove(t.Context()))
}

func TestSockDirMakesRoomByRemovingStaleDirectories(t *testing.T) {
	tmp := remotetest.TinyFS(t)
	dead := filepath.Dir(remotetest.SocketIn(t, tmp, "dead"))
	require.NoError(t, os.MkdirAll(dead, 0o700))
	remotetest.FillDisk(t, dead)
	d := mustOpen(t, tmp, "42")
	require.Equal(t, []string{"42"}, remotetest.Names(t, d.base.path))
	require.NoError(t, d.Remove(t.Context()))
}

func TestSweepRemovesStaleDirectoriesAndNothingElse(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "me")
	living := mustOpen(t, tmp, "living")
	base := d.base.path
	in := func(name string) string { return filepath.Join(base, name) }

	var outside []string
	for _, name := range []string{"dead-1", "dead-2", ".hidden", scratchName(), "not a build"} {
		require.NoError(t, os.Mkdir(in(name), 0o700))
		outside = append(outside, remotetest.FillStale(t, in(name)))
	}
	require.NoError(t, os.Chmod(in("dead-2"), 0)) // as a job can

	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside[0]), in("link")))
	require.NoError(t, unix.Mkfifo(in("fifo"), 0o600))
	kept := []string{"fifo", "file", "link", "living", "me", "neighbour"}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Mkdir(in("their"), 0o700))
		require.NoError(t, os.Lchown(in("their"), remotetest.Nobody, remotetest.Nobody))
		kept = append(kept, "their")
	}
	// Another program's serve: no lock, but it listens.
	require.NoError(t, os.Mkdir(in("neighbour"), 0o700))
	ln, err := net.Listen("unix", filepath.Join(in("neighbour"), wire.SocketName))
	require.NoError(t, err)

	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, kept, remotetest.Names(t, base))
	for _, path := range outside {
		require.FileExists(t, path)
	}

	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as when its process is killed
	require.NoError(t, ln.Close())
	require.NoError(t, d.base.sweep(t.Context()))
	require.NotContains(t, remotetest.Names(t, base), "neighbour")
	require.NoError(t, living.Remove(t.Context()))
	require.NoError(t, d.Remove(t.Context()))
}

func TestSweepEndsWithItsContext(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "me")
	require.NoError(t, os.Mkdir(filepath.Join(d.base.path, "dead"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, d.base.sweep(ctx))
	require.Equal(t, []string{"dead", "me"}, remotetest.Names(t, d.base.path))
	require.NoError(t, d.Remove(t.Context()))
}

func TestSweepLeavesADirectoryThatIsBeingMade(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
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
	require.Equal(t, []string{"me", scratch}, remotetest.Names(t, d.base.path))
	filelock.Unlock(maker.dir) // it died
	require.NoError(t, d.base.sweep(t.Context()))
	require.Equal(t, []string{"me"}, remotetest.Names(t, d.base.path))
	require.NoError(t, d.Remove(t.Context()))
}

func TestSweepOfAHugeBaseIsBounded(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	d := mustOpen(t, tmp, "me")
	const all = maxSweep + 500
	for i := range all {
		require.NoError(t, os.Mkdir(filepath.Join(d.base.path, fmt.Sprint(i)), 0o700))
	}
	require.NoError(t, d.base.sweep(t.Context()))
	left := len(remotetest.Names(t, d.base.path)) - 1
	require.Less(t, left, all-maxSweep+130)
	require.Greater(t, left, all-maxSweep-130, "not bounded")
	require.NoError(t, d.Remove(t.Context()))
}
