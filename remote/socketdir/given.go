package socketdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
)

// stateSuffix and the socket's name make the name of the directory that OpenGiven makes beside the socket.
const stateSuffix = ".d"

// IsBuild reports whether a socket's path has the form <tmp>/gitlab-runner-steps/<build id>/<name>. For such a path
// Open makes the directory; for any other path the caller makes it, see OpenGiven.
func IsBuild(path string) bool {
	return wire.IsSocketBase(filepath.Base(filepath.Dir(filepath.Dir(path))))
}

// OpenGiven takes the directory of the socket path, which the caller has made for it, as `mktemp -d` does: empty, of
// our user, with mode 0700 and no symbolic link. OpenGiven makes a directory of our own in it for everything but the
// socket. Nothing outside is locked or removed, and Remove leaves the caller's directory to the caller.
//
// If that directory cannot be used, OpenGiven makes one as Open does, in /tmp, /var/tmp or the user's cache directory,
// and [Dir.Moved] says why. The error says why none of them can be used either. The caller must call Remove.
func OpenGiven(ctx context.Context, path string) (*Dir, error) {
	return openGiven(ctx, path, ownPlaces())
}

// ownPlaces returns the parents to try for a directory of our own, if the caller's cannot be used.
func ownPlaces() []string {
	places := []string{"/tmp", "/var/tmp"}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, cache)
	}
	return places
}

func openGiven(ctx context.Context, path string, places []string) (*Dir, error) {
	d, err := takeGiven(ctx, path)
	if err == nil {
		return d, nil
	}
	moved := err
	for _, tmp := range places {
		own, ownErr := makeOwn(ctx, tmp)
		if ownErr == nil {
			own.moved = moved
			return own, nil
		}
		err = fmt.Errorf("%w; %w", err, ownErr)
	}
	return nil, fmt.Errorf("there is no private directory for the socket: %w", err)
}

// makeOwn makes a directory in tmp, as Open does.
func makeOwn(ctx context.Context, tmp string) (*Dir, error) {
	d, err := OpenNew(ctx, tmp, "")
	if err != nil {
		return nil, err
	}
	return d.tried(ctx)
}

// takeGiven makes a Dir in the caller's directory.
func takeGiven(ctx context.Context, path string) (*Dir, error) {
	if err := wire.CheckSocketPath(path); err != nil {
		return nil, err
	}
	parent, err := openTmp(filepath.Dir(filepath.Dir(path)))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	root, dir, err := openOurs(parent, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	defer dir.Close()
	if err := checkGiven(dir, filepath.Dir(path)); err != nil {
		return nil, err
	}
	d := &Dir{id: filepath.Base(path) + stateSuffix, socket: path}
	if d.lock, err = makeState(root, d.Path()); err != nil {
		return nil, err
	}
	return d.tried(ctx)
}

// checkGiven returns an error unless the open directory dir, of our user, is private and empty.
func checkGiven(dir *os.File, path string) error {
	fi, err := dir.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	if mode := fi.Mode().Perm(); mode != 0o700 {
		return fmt.Errorf("%s has mode %04o: want a private directory, of mode 0700", path, mode)
	}
	names, err := dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return fmt.Errorf("%s is not empty: it has %.64q", path, names[0])
}

// makeState makes the directory at path, an entry of root, and returns it locked. If it exists already, makeState
// fails: of several serves with the same caller's directory only one gets it.
func makeState(root *os.Root, path string) (*os.File, error) {
	name := filepath.Base(path)
	if err := root.Mkdir(name, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w", path, oserr.Hint(oserr.Bare(err), filepath.Dir(path)))
	}
	err := root.Chmod(name, 0o700) // the umask may have changed it
	if err == nil {
		var state *os.File
		if state, err = root.Open(name); err == nil {
			if err = filelock.Try(state); err == nil {
				return state, nil
			}
			state.Close()
		}
	}
	_ = root.Remove(name)
	return nil, fmt.Errorf("create %s: %w", path, oserr.Bare(err))
}

// tried returns d if it can make a file and a listener in it, so that no later step fails because the disk is full or
// the file system has no sockets. Otherwise it removes d.
func (d *Dir) tried(ctx context.Context) (*Dir, error) {
	err := d.try()
	if err == nil {
		return d, nil
	}
	if removeErr := d.Remove(context.WithoutCancel(ctx)); removeErr != nil {
		err = fmt.Errorf("%w; %w", err, removeErr)
	}
	return nil, err
}

func (d *Dir) try() error {
	file := filepath.Join(d.Path(), "try")
	err := os.WriteFile(file, make([]byte, 4096), 0o600)
	if removeErr := os.Remove(file); err == nil {
		err = removeErr
	}
	if err != nil {
		return fmt.Errorf("write in %s: %w", d.Path(), oserr.Hint(oserr.Bare(err), d.Path()))
	}
	ln, err := Listen(d.socket, nil)
	if err != nil {
		return err
	}
	return ln.Close()
}
