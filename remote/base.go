package remote

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

	"github.com/stepmux/stepmux/internal/wire"
)

// baseLockTimeout bounds the wait for the base's lock, which is only held for a few system calls.
const baseLockTimeout = 10 * time.Second

// errBusy says that a living process uses a build's directory.
var errBusy = errors.New("in use")

// base is the directory that holds one directory for each build of our user on this VM, open and
// verified. Three rules let processes that know nothing of each other share it:
//
//   - A build's directory appears under its name already locked by its serve, so one that can be locked
//     is stale, and whoever locked it may remove it.
//   - To remove a directory, it is first renamed to a scratch name, which no build can have. The build's
//     name is free at once, and an interrupted removal is finished by the next sweep.
//   - Making a directory, and locking one with a scratch name, is done under the base's own lock: there
//     a directory that is not locked yet cannot be told from a stale one.
type base struct {
	path string
	root *os.Root
	dir  *os.File // the base itself, for its lock
}

// openBase opens the base at path, made if missing. If another user has that name and it is
// wire.SocketBase, our own wire.SocketBase-<uid> beside it is used instead.
func openBase(path string) (*base, error) {
	b, err := openBaseAt(path)
	var found *foundError
	if errors.As(err, &found) && found.foreign() && filepath.Base(path) == wire.SocketBase {
		return openBaseAt(path + "-" + strconv.Itoa(os.Geteuid()))
	}
	return b, err
}

func openBaseAt(path string) (*base, error) {
	tmp, name := filepath.Dir(path), filepath.Base(path)
	parent, err := openTmp(tmp)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := parent.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create socket base %s: %w", path, hint(bare(err), tmp))
	}
	return openBaseIn(parent, path)
}

// findBase opens the base at path if it is there; else the error is fs.ErrNotExist.
func findBase(path string) (*base, error) {
	parent, err := openTmp(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return openBaseIn(parent, path)
}

// openBaseIn opens the base at path, which is in parent.
func openBaseIn(parent *os.Root, path string) (_ *base, err error) {
	name := filepath.Base(path)
	fi, err := parent.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("inspect socket base %s: %w", path, bare(err))
	}
	if err := ourDir(path, fi); err != nil {
		return nil, fmt.Errorf("open socket base: %w", err)
	}
	b := &base{path: path}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.root, err = parent.OpenRoot(name); err != nil {
		return nil, fmt.Errorf("open socket base %s: %w", path, hint(bare(err), path))
	}
	if b.dir, err = b.root.Open("."); err != nil {
		return nil, fmt.Errorf("open socket base %s: %w", path, hint(bare(err), path))
	}
	// OpenRoot follows a symbolic link: only what Lstat saw will do.
	opened, err := b.dir.Stat()
	if err != nil || !os.SameFile(fi, opened) {
		return nil, fmt.Errorf("open socket base %s: it was replaced meanwhile", path)
	}
	if opened.Mode().Perm() != 0o700 {
		if err := b.dir.Chmod(0o700); err != nil {
			return nil, fmt.Errorf("make socket base %s private: %w", path, bare(err))
		}
	}
	return b, nil
}

// openTmp opens the directory the base is in. There nobody but us and root may be able to replace it.
func openTmp(tmp string) (*os.Root, error) {
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return nil, fmt.Errorf("open temporary directory %s (it must exist): %w", tmp, bare(err))
	}
	fi, err := root.Stat(".")
	if err == nil && fi.Mode().Perm()&0o002 != 0 && fi.Mode()&fs.ModeSticky == 0 {
		err = fmt.Errorf("anybody can replace what is in it; run chmod +t %s, or use another one", tmp)
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("open temporary directory %s: %w", tmp, bare(err))
	}
	return root, nil
}

// lock takes the base's lock. It must be given back by unlock(b.dir).
func (b *base) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, baseLockTimeout,
		fmt.Errorf("another process has held it for %v", baseLockTimeout))
	defer cancel()
	if err := poll(ctx, func() (bool, error) { return tryFlock(b.dir) }); err != nil {
		return fmt.Errorf("lock socket base %s: %w", b.path, err)
	}
	return nil
}

// create makes the directory of build id and returns it locked. What a dead serve left there is moved
// out of the way. If a living one has it, the error is errBusy; if it is not ours, a *foundError.
func (b *base) create(ctx context.Context, id string) (*os.File, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer unlock(b.dir)
	stale, err := b.claim(id)
	switch {
	case err == nil:
		err = b.root.Rename(id, scratchName()) // for the sweep
		stale.Close()
		if err != nil {
			return nil, fmt.Errorf("move stale directory: %w", bare(err))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	scratch := scratchName()
	if err := b.root.Mkdir(scratch, 0o700); err != nil {
		return nil, hint(bare(err), b.path)
	}
	dir, err := b.claim(scratch)
	if err == nil {
		err = dir.Chmod(0o700) // whatever the umask made of it
	}
	if err == nil {
		err = b.root.Rename(scratch, id)
	}
	if err != nil {
		if dir != nil {
			dir.Close()
		}
		_ = b.root.Remove(scratch)
		return nil, hint(bare(err), b.path)
	}
	return dir, nil
}

// claim opens and locks the directory name of the base if it is ours and no living process uses it. The
// error is errBusy, a *foundError, or that of a system call.
func (b *base) claim(name string) (_ *os.File, err error) {
	fi, err := b.root.Lstat(name)
	if err != nil {
		return nil, bare(err)
	}
	if err := ourDir(filepath.Join(b.path, name), fi); err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o700 != 0o700 { // a job may have closed it
		if err := b.root.Chmod(name, 0o700); err != nil {
			return nil, bare(err)
		}
	}
	dir, err := b.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, bare(err)
	}
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	locked, err := tryFlock(dir)
	if err != nil {
		return nil, err
	}
	if !locked || answers(dir) {
		return nil, errBusy
	}
	// Whoever had the lock until now may have renamed or removed the directory.
	now, err := b.root.Lstat(name)
	if err != nil {
		return nil, bare(err)
	}
	opened, err := dir.Stat()
	if err != nil {
		return nil, bare(err)
	}
	if !os.SameFile(now, opened) {
		return nil, errBusy
	}
	return dir, nil
}

// answers reports whether a process listens on the socket in dir. The serve of another program that
// uses the same base, as GitLab Runner's does, holds no lock.
func answers(dir *os.File) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true // unknown: it stays
	}
	defer func() { _ = unix.Close(fd) }()
	// By way of the descriptor: no path is too long, and no symbolic link is followed to get there.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), wire.SocketName)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOTDIR)
}

// close gives up the base. It is idempotent and works on a base that was opened in part.
func (b *base) close() {
	if b.dir != nil {
		b.dir.Close()
	}
	if b.root != nil {
		b.root.Close()
	}
}

// scratchPrefix begins the names of directories that are being made or removed. No build ID has it.
const scratchPrefix = "~"

func scratchName() string { return scratchPrefix + rand.Text() }

func isScratch(name string) bool { return strings.HasPrefix(name, scratchPrefix) }

// bare strips the call and the relative name an *fs.PathError adds: our messages name the whole path.
func bare(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}
