package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSweep is the most entries of the base one sweep looks at. More than that are not builds.
const maxSweep = 4096

// sweep removes every directory of the base that is ours and that no living process uses. Anything else
// is left. It does not hold up builds that start meanwhile. It returns when it is through or ctx ends,
// with the first error; one directory it cannot remove does not keep it from the others.
func (b *base) sweep(ctx context.Context) error {
	list, err := b.root.Open(".")
	if err != nil {
		return fmt.Errorf("sweep %s: %w", b.path, bare(err))
	}
	defer list.Close()
	var first error
	for seen := 0; seen < maxSweep; {
		entries, err := list.ReadDir(128)
		for _, entry := range entries {
			if ctx.Err() != nil {
				return first
			}
			if err := b.sweepOne(ctx, entry.Name()); err != nil && first == nil && ctx.Err() == nil {
				first = fmt.Errorf("sweep %s: %w", filepath.Join(b.path, entry.Name()), err)
			}
		}
		seen += len(entries)
		if err != nil { // io.EOF too
			if !errors.Is(err, io.EOF) && first == nil {
				first = fmt.Errorf("sweep %s: %w", b.path, bare(err))
			}
			break
		}
	}
	return first
}

// sweepOne removes the directory name of the base if it is stale.
func (b *base) sweepOne(ctx context.Context, name string) error {
	dir, err := b.claimStale(ctx, name)
	var found *foundError
	switch {
	case errors.Is(err, errBusy), errors.Is(err, fs.ErrNotExist), errors.As(err, &found):
		return nil
	case err != nil:
		return err
	}
	defer dir.Close() // holds the lock until all is gone
	return b.discard(ctx, name)
}

// claimStale is claim, under the base's lock where that is needed.
func (b *base) claimStale(ctx context.Context, name string) (*os.File, error) {
	if isScratch(name) {
		if err := b.lock(ctx); err != nil {
			return nil, err
		}
		defer unlock(b.dir)
	}
	return b.claim(name)
}

// discard removes the directory name, which the caller has locked.
func (b *base) discard(ctx context.Context, name string) error {
	if !isScratch(name) {
		scratch := scratchName()
		if err := b.root.Rename(name, scratch); err != nil {
			return bare(err)
		}
		name = scratch
	}
	return removeTree(ctx, b.root, name)
}

// removeTree removes name and all below it, and stays within parent whatever symbolic links there are.
// Unlike RemoveAll it opens directories that were made unreadable or unwritable (module caches are),
// and ends when ctx does.
func removeTree(ctx context.Context, parent *os.Root, name string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fi, err := parent.Lstat(name)
	if err == nil && !fi.IsDir() {
		err = parent.Remove(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("remove %s: %w", name, bare(err))
	case !fi.IsDir():
		return nil
	}
	if fi.Mode().Perm()&0o700 != 0o700 {
		_ = parent.Chmod(name, 0o700) // if it fails, so does the next line
	}
	// Again if something appeared meanwhile, or if the listing missed something.
	for range 3 {
		if err = emptyDir(ctx, parent, name); err != nil {
			return err
		}
		if err = parent.Remove(name); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory %s: %w", name, bare(err))
	}
	return nil
}

// emptyDir removes what is in the directory name of parent, as much of it as it can, and returns the
// first error.
func emptyDir(ctx context.Context, parent *os.Root, name string) error {
	root, err := parent.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, bare(err))
	}
	defer root.Close()
	list, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("list %s: %w", name, bare(err))
	}
	defer list.Close()
	var first error
	for {
		names, err := list.Readdirnames(256)
		for _, child := range names {
			if err := removeTree(ctx, root, child); err != nil && first == nil {
				first = fmt.Errorf("%s: %w", name, err)
			}
		}
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return first
		case err != nil:
			return fmt.Errorf("list %s: %w", name, bare(err))
		}
	}
}
