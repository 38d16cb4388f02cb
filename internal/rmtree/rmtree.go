// Package rmtree removes directories with everything in them, even if a job has changed their modes or moves them
// at the same time. [Remove] takes a path, [RemoveIn] an entry of an open directory, [RemoveOpen] an open directory. No
// function leaves a goroutine or an open file.
package rmtree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

const (
	batch    = 1024 // names of a directory that are read at a time
	maxDepth = 64   // directories that are open at a time
)

// Remove removes path and everything below it. A path that does not exist is no error. See [RemoveIn].
func Remove(path string) error {
	if filepath.Base(path) == "." {
		return fmt.Errorf("remove %q: it names no entry of a directory", path)
	}
	parent, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveEntry(parent, filepath.Base(path))
}

// RemoveIn removes name, an entry of parent, and everything below it. It follows no symbolic link and stays within
// parent. Unlike RemoveAll it opens directories without permissions to read or write, such as those of module caches.
// It removes as much as it can and returns the first error. When ctx ends, it stops and returns ctx's cause.
func RemoveIn(ctx context.Context, parent *os.Root, name string) error {
	return newRemoval(ctx).remove(parent, name, 0)
}

// RemoveEntry is RemoveIn without a bound of time.
func RemoveEntry(parent *os.Root, name string) error {
	r := &removal{stopped: func() error { return nil }}
	return r.remove(parent, name, 0)
}

// RemoveOpen removes the open directory dir and everything below it, even if its user has moved it. It is no error if
// it has been removed. When ctx ends, it stops and returns ctx's cause.
func RemoveOpen(ctx context.Context, dir *os.File) error {
	err := EmptyOpen(ctx, dir, func(string) bool { return false })
	if stopped := context.Cause(ctx); stopped != nil {
		return cmp.Or(err, stopped)
	}
	path, linkErr := os.Readlink(PathOf(dir))
	if linkErr != nil {
		return errors.Join(err, linkErr)
	}
	parent, parentErr := os.OpenRoot(filepath.Dir(path))
	if errors.Is(parentErr, fs.ErrNotExist) {
		return err
	}
	if parentErr != nil {
		return errors.Join(err, parentErr)
	}
	defer parent.Close()
	ours, statErr := dir.Stat()
	now, lstatErr := parent.Lstat(filepath.Base(path))
	switch {
	case statErr != nil:
		return errors.Join(err, statErr)
	case lstatErr != nil || !os.SameFile(ours, now): // it was removed: the system calls it "path (deleted)"
		return err
	default:
		return errors.Join(err, newRemoval(ctx).remove(parent, filepath.Base(path), 0))
	}
}

// EmptyOpen removes all entries of the open directory dir, except for those for which keep is true. It is no error if
// dir has been removed. When ctx ends, it stops and returns ctx's cause.
func EmptyOpen(ctx context.Context, dir *os.File, keep func(name string) bool) error {
	_ = dir.Chmod(0o700) // if it fails, so does the next line
	root, err := os.OpenRoot(PathOf(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	err = newRemoval(ctx).empty(root, ".", 0, keep)
	if errors.Is(err, fs.ErrNotExist) { // dir was removed
		return nil
	}
	return err
}

// PathOf returns a path of dir that is valid as long as dir is open, even if dir is renamed.
func PathOf(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// removal is the removal of one tree.
type removal struct {
	stopped func() error // an error ends the removal
	top     *os.Root     // the tree's uppermost directory
	lifted  int          // how many directories were moved to top
}

// newRemoval returns a removal that stops between two entries when ctx ends.
func newRemoval(ctx context.Context) *removal {
	return &removal{stopped: func() error { return context.Cause(ctx) }}
}

// remove is RemoveIn for an entry that is depth levels below the top.
func (r *removal) remove(parent *os.Root, name string, depth int) error {
	if err := r.stopped(); err != nil {
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
		return oserr.With("remove "+name, oserr.Bare(err))
	case !fi.IsDir():
		return nil
	}
	if fi.Mode().Perm()&0o700 != 0o700 {
		_ = parent.Chmod(name, 0o700) // if it fails, so does the next step
	}
	if depth == maxDepth {
		return r.lift(parent, name)
	}
	err = parent.Remove(name) // many directories are empty
	// A process may still write there, so the directory may not be empty any more. Then try again.
	for try := 0; err != nil && try < 3 && (try == 0 || errors.Is(err, unix.ENOTEMPTY)); try++ {
		if err = r.empty(parent, name, depth, func(string) bool { return false }); err != nil {
			return err
		}
		err = parent.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return oserr.With("remove directory "+name, oserr.Bare(err))
	}
	return nil
}

// lift moves the directory name of parent to the top, where it is removed later. So even a very deep tree needs few
// open files, and no long path.
func (r *removal) lift(parent *os.Root, name string) error {
	from, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := r.top.Open(".")
	if err != nil {
		return err
	}
	defer to.Close()
	if err := unix.Renameat(int(from.Fd()), name, int(to.Fd()), strconv.FormatUint(rand.Uint64(), 36)); err != nil {
		return oserr.With("move "+name+" up", err)
	}
	r.lifted++
	return nil
}

// empty removes the entries of the directory name of parent, except for those for which keep is true.
func (r *removal) empty(parent *os.Root, name string, depth int, keep func(name string) bool) error {
	root, err := parent.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) { // another process has removed it
		return nil
	}
	if err != nil {
		return oserr.With("open "+name, oserr.Bare(err))
	}
	defer root.Close()
	if depth == 0 {
		r.top = root
	}
	for failed := 0; ; {
		most, lifted := batch+failed, r.lifted // entries that failed are listed again
		names, err := list(root, most)
		if errors.Is(err, fs.ErrNotExist) { // another process has removed it
			return nil
		}
		if err != nil {
			return oserr.With("list "+name, oserr.Bare(err))
		}
		failed = 0
		var first error
		for _, child := range names {
			if keep(child) {
				failed++
				continue
			}
			if err := r.remove(root, child, depth+1); err != nil {
				failed++
				if first == nil {
					first = oserr.With(name, err)
				}
			}
		}
		if lifted == r.lifted && (len(names) < most || failed == len(names)) {
			return first
		}
		if err := r.stopped(); err != nil {
			return cmp.Or(first, err)
		}
	}
}

// list returns at most most names in root. It leaves no file open, because the caller descends into the listed
// directories.
func list(root *os.Root, most int) ([]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
