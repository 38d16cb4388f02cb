package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
)

// busyPatience is how long a build's directory may be in use before that is an error: its last serve
// may be on its way out, or its sweep under way.
const busyPatience = time.Second

// sockDir is the private directory of one build: the socket, and the state of its jobs. It is made
// fresh, locked while it is open, and removed with all in it.
type sockDir struct {
	base   *base
	id     string
	lock   *os.File // the directory itself
	socket string   // the socket's path, for which nothing stands there yet
}

// openSockDir makes the directory of the socket path, <tmp>/gitlab-runner-steps/<build id>/<name>. What
// dead serves left where it is needed is removed, also if only that makes the room. The caller must
// call remove.
func openSockDir(ctx context.Context, path string) (*sockDir, error) {
	basePath, id, err := splitSocketPath(path)
	if err != nil {
		return nil, err
	}
	b, err := openBase(basePath)
	if err != nil {
		return nil, err
	}
	d := &sockDir{base: b, id: string(id), socket: filepath.Join(b.path, string(id), filepath.Base(path))}
	if err = wire.CheckSocketPath(d.socket); err == nil {
		d.lock, err = d.create(ctx)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("create directory of build %s in %s: %w", id, b.path, err)
	}
	return d, nil
}

// create is base.create with patience: with a directory in use for a moment, and once with a full disk.
func (d *sockDir) create(ctx context.Context) (dir *os.File, err error) {
	patience, cancel := context.WithTimeoutCause(ctx, busyPatience, errBusy)
	defer cancel()
	err = poll(patience, func() (bool, error) {
		var err error
		dir, err = d.base.create(ctx, d.id)
		if noSpace(err) {
			_ = d.base.sweep(ctx) // the next attempt tells whether it helped
			dir, err = d.base.create(ctx, d.id)
		}
		if errors.Is(err, errBusy) {
			return false, nil
		}
		return true, err
	})
	if errors.Is(err, errBusy) {
		return nil, errors.New("the build is already being served on this machine")
	}
	return dir, err
}

// splitSocketPath returns the base and the build ID of a socket's path. It is strict, because all
// directories of the base that nobody locked will be removed: /tmp/x.sock must not make / a base.
func splitSocketPath(path string) (basePath string, id wire.BuildID, err error) {
	if err := wire.CheckSocketPath(path); err != nil {
		return "", "", err
	}
	dir := filepath.Dir(path)
	basePath = filepath.Dir(dir)
	if !wire.IsSocketBase(filepath.Base(basePath)) {
		return "", "", fmt.Errorf("socket path %q is not in a directory of its build: want <tmp>/%s/<build id>/%s",
			path, wire.SocketBase, wire.SocketName)
	}
	id, err = wire.ParseBuildID(filepath.Base(dir))
	if err != nil {
		return "", "", fmt.Errorf("socket path %q: %w", path, err)
	}
	return basePath, id, nil
}

// path returns the directory's path.
func (d *sockDir) path() string { return filepath.Dir(d.socket) }

// remove removes the directory with all in it, if it is still there, and gives up the lock. It waits for
// the file system only, no longer than ctx; it must be called once.
func (d *sockDir) remove(ctx context.Context) error {
	defer d.base.close()
	defer d.lock.Close()
	now, err := d.base.root.Lstat(d.id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ours, statErr := d.lock.Stat()
	switch {
	case err != nil || statErr != nil:
		err = errors.Join(bare(err), bare(statErr))
	case !os.SameFile(now, ours):
		return nil // somebody moved ours away and made another
	default:
		err = d.base.discard(ctx, d.id)
	}
	if err != nil {
		return fmt.Errorf("remove directory of build %s in %s: %w", d.id, d.base.path, err)
	}
	return nil
}
