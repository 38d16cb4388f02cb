package socketdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/wire"
)

// busyTimeout bounds the wait for a build's directory that is in use: its last serve may be about to exit, or a sweep
// may be removing it.
const busyTimeout = time.Second

// Dir is the private directory of one build. It holds the state of the build's jobs, and the socket if Open made it. It
// is locked until Remove, which removes it with everything in it.
type Dir struct {
	base   *base    // its parent, or nil if the caller made that
	id     string   // its name in the parent
	lock   *os.File // the open directory itself
	socket string   // the path for the socket; a Dir does not listen
	moved  error    // why OpenGiven has not used the caller's directory
}

// Open makes the directory of the socket path, <tmp>/gitlab-runner-steps/<build id>/<name>. It replaces the directory
// that a dead serve of the same build left, and removes those of other dead serves if the disk is full. The caller must
// call Remove.
func Open(ctx context.Context, path string) (*Dir, error) {
	basePath, id, err := splitPath(path)
	if err != nil {
		return nil, err
	}
	b, err := openBase(basePath)
	if err != nil {
		return nil, err
	}
	d := &Dir{base: b, id: string(id), socket: filepath.Join(b.path, string(id), filepath.Base(path))}
	if err = wire.CheckSocketPath(d.socket); err == nil {
		d.lock, err = d.create(ctx)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("create directory of build %s in %s: %w", id, b.path, err)
	}
	return d, nil
}

// OpenNew is Open for a new directory below tmp. Its name is prefix and a random text, which is short: the path of a
// socket has a bound.
func OpenNew(ctx context.Context, tmp, prefix string) (*Dir, error) {
	path, err := wire.SocketPath(tmp, wire.BuildID(prefix+rand.Text()[:8]))
	if err != nil {
		return nil, err
	}
	return Open(ctx, path)
}

// create calls base.create until it succeeds: for busyTimeout while the directory is in use, and once more after a
// sweep if the disk is full.
func (d *Dir) create(ctx context.Context) (dir *os.File, err error) {
	retries, cancel := context.WithTimeoutCause(ctx, busyTimeout, filelock.ErrTaken)
	defer cancel()
	err = pause.Until(retries, func() (bool, error) {
		var err error
		dir, err = d.base.create(ctx, d.id)
		if oserr.NoSpace(err) {
			_ = d.base.sweep(ctx) // the next attempt shows whether it helped
			dir, err = d.base.create(ctx, d.id)
		}
		if errors.Is(err, filelock.ErrTaken) {
			return false, nil
		}
		return true, err
	})
	if errors.Is(err, filelock.ErrTaken) {
		return nil, errors.New("the build is already being served on this machine")
	}
	return dir, err
}

// splitPath returns the base and the build ID of a socket's path. It accepts no other form, because a sweep removes
// every directory of the base that is not locked: /tmp/x.sock must not make / a base.
func splitPath(path string) (basePath string, id wire.BuildID, err error) {
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

// Path returns the directory's path.
func (d *Dir) Path() string {
	if d.base == nil {
		return filepath.Join(filepath.Dir(d.socket), d.id)
	}
	return filepath.Dir(d.socket)
}

// Socket returns the path to listen on. It is not the path given to Open if another user owns that base, nor the path
// given to OpenGiven if Moved returns a reason.
func (d *Dir) Socket() string { return d.socket }

// Moved returns why OpenGiven has not used the caller's directory, or nil if it has.
func (d *Dir) Moved() error { return d.moved }

// Sweep removes the directories of dead serves beside d. See [Sweep]. In a caller's directory there are no others.
func (d *Dir) Sweep(ctx context.Context) error {
	if d.base == nil {
		return nil
	}
	return d.base.sweep(ctx)
}

// Remove removes the directory with everything in it, even if a job has moved it, and releases the lock. It waits only
// for the file system, and no longer than ctx. It must be called once.
func (d *Dir) Remove(ctx context.Context) error {
	defer d.close()
	var err error
	if d.base != nil && filelock.StillAt(d.lock, d.Path()) {
		err = d.base.discard(ctx, d.id)
	} else { // a job may have moved ours away, and made another
		err = rmtree.RemoveOpen(ctx, d.lock)
	}
	if err != nil {
		return fmt.Errorf("remove directory %s: %w", d.Path(), err)
	}
	return nil
}

// close releases the lock.
func (d *Dir) close() {
	d.lock.Close()
	if d.base != nil {
		d.base.close()
	}
}
