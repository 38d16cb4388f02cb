package socketdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/wire"
)

// busyTimeout is how long the directory of a build may be in use before that is an error: its last serve may be about
// to exit, or a sweep may be removing it.
const busyTimeout = time.Second

// Dir is the private directory of one build: it holds the state of the build's jobs, and the socket if Open made it.
// It is locked while it is open, and Remove removes it with everything in it.
type Dir struct {
	base   *base    // where it is, or nil
	given  *os.Root // where it is if its caller made that directory, else nil
	id     string   // its name there
	lock   *os.File // the directory itself
	socket string   // the socket's path; nothing listens there yet
	moved  error    // why OpenGiven has not used its caller's directory
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

// create is base.create, repeated until busyTimeout while the directory is in use, and once after a sweep if the disk
// is full.
func (d *Dir) create(ctx context.Context) (dir *os.File, err error) {
	retries, cancel := context.WithTimeoutCause(ctx, busyTimeout, filelock.ErrTaken)
	defer cancel()
	err = filelock.Poll(retries, func() (bool, error) {
		var err error
		dir, err = d.base.create(ctx, d.id)
		if oserr.NoSpace(err) {
			_ = d.base.sweep(ctx) // the next attempt tells whether it helped
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

// splitPath returns the base and the build ID of a socket's path. It is strict because a sweep removes every directory
// of the base that is not locked: /tmp/x.sock must not make / a base.
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
	if d.given != nil {
		return filepath.Join(filepath.Dir(d.socket), d.id)
	}
	return filepath.Dir(d.socket)
}

// Socket returns the path to listen on. It differs from the path given to Open if another user has that base, and from
// that given to OpenGiven if Moved says why.
func (d *Dir) Socket() string { return d.socket }

// Moved returns why OpenGiven has not used the directory that its caller made, or nil.
func (d *Dir) Moved() error { return d.moved }

// Sweep removes the directories of dead serves beside d. See [Sweep]. There are none in a caller's directory.
func (d *Dir) Sweep(ctx context.Context) error {
	if d.given != nil {
		return nil
	}
	return d.base.sweep(ctx)
}

// Remove removes the directory with everything in it, wherever a job may have moved it, and gives up the lock. It
// waits for the file system only, no longer than ctx. It must be called once.
func (d *Dir) Remove(ctx context.Context) error {
	defer d.close()
	now, err := d.root().Lstat(d.id)
	ours, statErr := d.lock.Stat()
	switch {
	case statErr != nil || err != nil && !errors.Is(err, os.ErrNotExist):
		err = errors.Join(oserr.Bare(err), oserr.Bare(statErr))
	case err != nil || !os.SameFile(now, ours): // a job moved ours away, and may have made another
		err = rmtree.RemoveOpen(ctx, d.lock)
	default:
		err = d.discard(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove directory %s: %w", d.Path(), err)
	}
	return nil
}

// root returns the directory in which d is.
func (d *Dir) root() *os.Root {
	if d.given != nil {
		return d.given
	}
	return d.base.root
}

// close gives up the lock.
func (d *Dir) close() {
	d.lock.Close()
	if d.given != nil {
		d.given.Close()
		return
	}
	d.base.close()
}
