package socketdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
)

// baseLockTimeout bounds the wait for the base's lock. Its holders keep it only for a few system calls.
const baseLockTimeout = 10 * time.Second

// base is the directory that holds one directory for each build of our user on this VM. It is open and verified. Three
// rules let independent processes share it:
//
//   - A build's directory appears under its name already locked by its serve. So a directory that can be locked is
//     stale, and the process that locked it may remove it.
//   - A directory is renamed to a scratch name, which no build can have, before it is removed. So the build's name is
//     free at once, and the next sweep finishes an interrupted removal.
//   - A process holds the base's own lock while it makes a directory, and while it locks one with a scratch name: a
//     scratch directory that is not locked yet looks like a stale one.
type base struct {
	path string
	root *os.Root
	dir  *os.File // the base itself, for its lock
}

// openBase opens the base at path and makes it if it is missing. If its name is wire.SocketBase and it belongs to
// another user, openBase takes our own wire.SocketBase-<uid> beside it.
func openBase(path string) (*base, error) {
	b, err := openBaseAt(path, true)
	var found *FoundError
	if errors.As(err, &found) && found.foreign() && filepath.Base(path) == wire.SocketBase {
		return openBaseAt(path+"-"+strconv.Itoa(os.Geteuid()), true)
	}
	return b, err
}

// openBaseAt opens the base at path. If the base is missing, it makes one if create is set; otherwise the error is
// fs.ErrNotExist.
func openBaseAt(path string, create bool) (_ *base, err error) {
	tmp, name := filepath.Dir(path), filepath.Base(path)
	parent, err := openTmp(tmp)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if create {
		if err := parent.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("create socket base %s: %w", path, oserr.Hint(oserr.Bare(err), tmp))
		}
	}
	root, dir, err := openOurs(parent, path)
	if err != nil {
		return nil, fmt.Errorf("open socket base: %w", err)
	}
	b := &base{path: path, root: root, dir: dir}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	fi, err := dir.Stat()
	if err == nil && fi.Mode().Perm() != 0o700 {
		err = dir.Chmod(0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("make socket base %s private: %w", path, oserr.Bare(err))
	}
	return b, nil
}

// openOurs opens the directory at path, an entry of parent, as a root and as a file. The error is a *FoundError if it
// is not a directory of our user.
func openOurs(parent *os.Root, path string) (_ *os.Root, _ *os.File, err error) {
	name := filepath.Base(path)
	fi, err := parent.Lstat(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	if err := ourDir(path, fi); err != nil {
		return nil, nil, err
	}
	root, err := parent.OpenRoot(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, oserr.Hint(oserr.Bare(err), path))
	}
	defer func() {
		if err != nil {
			root.Close()
		}
	}()
	dir, err := root.Open(".")
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, oserr.Hint(oserr.Bare(err), path))
	}
	// OpenRoot follows a symbolic link: accept only the directory that Lstat saw.
	opened, err := dir.Stat()
	if err == nil && !os.SameFile(fi, opened) {
		err = errors.New("another process replaced the directory")
	}
	if err != nil {
		dir.Close()
		return nil, nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return root, dir, nil
}

// openTmp opens the directory that holds a base, or one that a caller made. It refuses a directory in which users other
// than root could replace it.
func openTmp(tmp string) (*os.Root, error) {
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return nil, fmt.Errorf("open temporary directory %s (it must exist): %w", tmp, oserr.Bare(err))
	}
	fi, err := root.Stat(".")
	if err == nil && fi.Mode().Perm()&0o002 != 0 && fi.Mode()&fs.ModeSticky == 0 {
		err = fmt.Errorf("any user can replace the files in it; run chmod +t %s, or use another one", tmp)
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("open temporary directory %s: %w", tmp, oserr.Bare(err))
	}
	return root, nil
}

// lock takes the base's lock. The caller releases it with filelock.Unlock(b.dir).
func (b *base) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, baseLockTimeout,
		fmt.Errorf("another process has held it for %v", baseLockTimeout))
	defer cancel()
	if err := filelock.Wait(ctx, b.dir); err != nil {
		return fmt.Errorf("lock socket base %s: %w", b.path, err)
	}
	return nil
}

// create makes the directory of build id and returns it locked. It first moves the directory of a dead serve away. The
// error is filelock.ErrTaken if a living serve has the directory, and a *FoundError if it is not ours.
func (b *base) create(ctx context.Context, id string) (*os.File, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer filelock.Unlock(b.dir)
	stale, err := b.claim(id)
	switch {
	case err == nil:
		err = b.root.Rename(id, scratchName()) // a sweep removes it
		stale.Close()
		if err != nil {
			return nil, fmt.Errorf("move stale directory: %w", oserr.Bare(err))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	scratch := scratchName()
	if err := b.root.Mkdir(scratch, 0o700); err != nil {
		return nil, oserr.Hint(oserr.Bare(err), b.path)
	}
	dir, err := b.claim(scratch)
	if err == nil {
		err = dir.Chmod(0o700) // the umask may have changed it
	}
	if err == nil {
		err = b.root.Rename(scratch, id)
	}
	if err != nil {
		if dir != nil {
			dir.Close()
		}
		_ = b.root.Remove(scratch)
		return nil, oserr.Hint(oserr.Bare(err), b.path)
	}
	return dir, nil
}

// claim opens and locks the directory name of the base, if it is ours and no living process uses it. The error is
// filelock.ErrTaken, a *FoundError, or a system call's.
func (b *base) claim(name string) (_ *os.File, err error) {
	fi, err := b.root.Lstat(name)
	if err != nil {
		return nil, oserr.Bare(err)
	}
	if err := ourDir(filepath.Join(b.path, name), fi); err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o700 != 0o700 { // a job may have changed it
		if err := b.root.Chmod(name, 0o700); err != nil {
			return nil, oserr.Bare(err)
		}
	}
	dir, err := b.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, oserr.Bare(err)
	}
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	if err := filelock.Try(dir); err != nil {
		return nil, err
	}
	if answers(dir) {
		return nil, filelock.ErrTaken
	}
	// The last holder of the lock may have renamed or removed the directory.
	now, err := b.root.Lstat(name)
	opened, statErr := dir.Stat()
	switch {
	case err != nil || statErr != nil:
		return nil, errors.Join(oserr.Bare(err), oserr.Bare(statErr))
	case !os.SameFile(now, opened):
		return nil, filelock.ErrTaken
	}
	return dir, nil
}

// answers reports whether a process listens on the socket in dir. It finds serves of other programs in the same base,
// such as GitLab Runner's: they hold no lock.
func answers(dir *os.File) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true // unknown: keep the directory
	}
	defer func() { _ = unix.Close(fd) }()
	// Through the descriptor, every path is short enough, and no symbolic link is followed.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), wire.SocketName)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOTDIR)
}

// close closes the base. It is idempotent, and also closes a base that was opened in part.
func (b *base) close() {
	if b.dir != nil {
		b.dir.Close()
	}
	if b.root != nil {
		b.root.Close()
	}
}

// scratchPrefix begins the names of directories that are being made or removed. No build ID begins with it.
const scratchPrefix = "~"

func scratchName() string { return scratchPrefix + rand.Text() }

func isScratch(name string) bool { return strings.HasPrefix(name, scratchPrefix) }
