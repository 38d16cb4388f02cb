package socketdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/wire"
)

// maxSweep bounds the entries of the base that one sweep looks at. No VM has that many builds.
const maxSweep = 4096

// Sweep removes the directories that killed serves have left below tmp, in both bases that our user can have there. A
// base that is missing or belongs to another user is no error. It returns at most one error for each base.
func Sweep(ctx context.Context, tmp string) (errs []error) {
	for _, name := range ourBases() {
		b, err := openBaseAt(filepath.Join(tmp, name), false)
		found := (*FoundError)(nil)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.As(err, &found) && found.foreign():
			continue
		case err == nil:
			err = b.sweep(ctx)
			b.close()
		}
		if err != nil && ctx.Err() == nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// ourBases returns the names that the base of our user can have.
func ourBases() []string {
	return []string{wire.SocketBase, wire.SocketBase + "-" + strconv.Itoa(os.Geteuid())}
}

// sweep removes every directory of the base that is ours and that no living process uses. It does not delay builds that
// start in the meantime. It returns at its end, or when ctx ends, with the first error; after an error it goes on with
// the other directories.
func (b *base) sweep(ctx context.Context) error {
	list, err := b.root.Open(".")
	if err != nil {
		return fmt.Errorf("sweep %s: %w", b.path, oserr.Bare(err))
	}
	defer list.Close()
	entries, err := list.ReadDir(maxSweep)
	var first error
	if err != nil && !errors.Is(err, io.EOF) {
		first = fmt.Errorf("sweep %s: %w", b.path, oserr.Bare(err))
	}
	for _, entry := range entries {
		if ctx.Err() != nil {
			break
		}
		if err := b.sweepOne(ctx, entry.Name()); err != nil && first == nil && ctx.Err() == nil {
			first = fmt.Errorf("sweep %s: %w", filepath.Join(b.path, entry.Name()), err)
		}
	}
	return first
}

// sweepOne removes the directory name of the base if it is stale.
func (b *base) sweepOne(ctx context.Context, name string) error {
	dir, err := b.claimStale(ctx, name)
	var found *FoundError
	switch {
	case errors.Is(err, filelock.ErrTaken), errors.Is(err, fs.ErrNotExist), errors.As(err, &found):
		return nil
	case err != nil:
		return err
	}
	defer dir.Close() // holds the lock until all files are gone
	return b.discard(ctx, name)
}

// claimStale calls claim. It holds the base's lock during the call if name is a scratch name.
func (b *base) claimStale(ctx context.Context, name string) (*os.File, error) {
	if isScratch(name) {
		if err := b.lock(ctx); err != nil {
			return nil, err
		}
		defer filelock.Unlock(b.dir)
	}
	return b.claim(name)
}

// discard removes the directory name, which the caller has locked.
func (b *base) discard(ctx context.Context, name string) error {
	if !isScratch(name) {
		scratch := scratchName()
		if err := b.root.Rename(name, scratch); err != nil {
			return oserr.Bare(err)
		}
		name = scratch
	}
	return rmtree.RemoveIn(ctx, b.root, name)
}
