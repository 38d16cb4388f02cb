package whole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
)

// lock takes a lock of the project, which other runs on this machine may hold, and returns a function that releases it.
func (r *runner) lock(ctx context.Context, name string, a *carry.Attempt) (unlock func(), err error) {
	if r.cfg.StateDir == "" {
		return func() {}, nil
	}
	file, err := r.lockFile(name)
	if err != nil {
		return nil, err
	}
	if err = filelock.Try(file); errors.Is(err, filelock.ErrTaken) {
		a.Say(fmt.Sprintf("waits for %q, which another job on this machine has", name))
		err = filelock.Wait(ctx, file)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %.64q: %w", name, err)
	}
	return func() { filelock.Release(file) }, nil
}

// lockFile opens the file of a lock, which all runs of the project on this machine share. Without a directory for their
// state, the jobs of this run do.
func (r *runner) lockFile(name string) (*os.File, error) {
	dir := filepath.Join(cmp.Or(r.cfg.StateDir, r.dir), "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for locks: %w", err)
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // it is removed when it has not been used for long
	// The file stays: removing it would need a lock, too.
	file, err := os.OpenFile(filepath.Join(dir, nameOf(name)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock %.64q: %w", name, err)
	}
	return file, nil
}
