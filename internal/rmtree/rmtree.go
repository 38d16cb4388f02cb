// Package rmtree removes directories with everything in them, whatever modes a job has given them.
package rmtree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// batch is how many names of a directory are read at once.
const batch = 1024

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
	return remove(parent, filepath.Base(path), func() error { return nil })
}

// RemoveIn removes name, an entry of parent, and everything below it. It follows no symbolic link and stays within
// parent. Unlike RemoveAll it opens directories that were made unreadable or unwritable, as module caches are. It
// removes as much as it can and returns the first error. When ctx ends it stops and returns ctx's cause.
func RemoveIn(ctx context.Context, parent *os.Root, name string) error {
	return remove(parent, name, func() error { return context.Cause(ctx) })
}

// remove is RemoveIn; it ends when stopped returns an error.
func remove(parent *os.Root, name string, stopped func() error) error {
	if err := stopped(); err != nil {
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
		return fmt.Errorf("remove %s: %w", name, oserr.Bare(err))
	case !fi.IsDir():
		return nil
	}
	if fi.Mode().Perm()&0o700 != 0o700 {
		_ = parent.Chmod(name, 0o700) // if it fails, so does the next line
	}
	// A process may still write there, so an emptied directory may not be empty: try again.
	for range 3 {
		if err = empty(parent, name, stopped); err != nil {
			return err
		}
		if err = parent.Remove(name); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory %s: %w", name, oserr.Bare(err))
	}
	return nil
}

// empty removes the entries of the directory name of parent.
func empty(parent *os.Root, name string, stopped func() error) error {
	root, err := parent.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, oserr.Bare(err))
	}
	defer root.Close()
	for failed := 0; ; {
		most := batch + failed // entries that cannot be removed are listed again
		names, err := list(root, most)
		if err != nil {
			return fmt.Errorf("list %s: %w", name, oserr.Bare(err))
		}
		failed = 0
		var first error
		for _, child := range names {
			if err := remove(root, child, stopped); err != nil {
				failed++
				if first == nil {
					first = fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		if stopped() != nil || len(names) < most || failed == len(names) {
			return first
		}
	}
}

// list returns at most so many names in root. It keeps no file open: the caller descends into what it lists.
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
