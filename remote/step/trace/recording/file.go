package recording

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// File is the file of a trace that will be written later. It reserves room on the disk under a temporary name, so that
// the trace is not lost if the disk fills up in the meantime. It is not safe for concurrent use.
type File struct {
	path     string
	temp     *os.File // nil after Commit and Discard
	reserved int64
	written  int64
}

// Create reserves room for size bytes in the directory of path. The file at path does not change before Commit. The
// caller must call Commit or Discard.
func Create(path string, size int64) (*File, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, fmt.Errorf("write %s: it is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("write %s: there is something that is not a regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("write %w", err)
	}
	base := filepath.Base(path)
	base = base[:min(len(base), 200)]                               // the name may have the maximal length already
	temp, err := os.CreateTemp(filepath.Dir(path), "."+base+".tmp") // of mode 0600
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, oserr.Bare(err))
	}
	f := &File{path: path, temp: temp}
	if err := f.Reserve(size); err != nil {
		f.Discard()
		return nil, err
	}
	return f, nil
}

// Path returns the final path of the trace.
func (f *File) Path() string { return f.path }

// Reserve reserves room for size bytes in all. It never reduces the room, and does nothing on a file system that cannot
// reserve.
func (f *File) Reserve(size int64) error {
	if f.temp == nil || size <= f.reserved {
		return nil
	}
	err := unix.Fallocate(int(f.temp.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("reserve room for %s: %w", f.path, err)
	}
	f.reserved = size
	return nil
}

// Write writes the next piece of the trace.
func (f *File) Write(p []byte) (int, error) {
	if f.temp == nil {
		return 0, fmt.Errorf("write %s: %w", f.path, fs.ErrClosed)
	}
	n, err := f.temp.Write(p)
	f.written += int64(n)
	if err != nil {
		return n, fmt.Errorf("write %s: %w", f.path, oserr.Bare(err))
	}
	return n, nil
}

// Commit moves the written file to path. It replaces the file there completely or, after an error, not at all. It ends
// f.
func (f *File) Commit() error {
	if f.temp == nil {
		return fmt.Errorf("write %s: %w", f.path, fs.ErrClosed)
	}
	temp := f.temp
	f.temp = nil
	err := temp.Truncate(f.written) // releases the rest of the reserved room
	if err == nil {
		err = temp.Sync()
	}
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return fmt.Errorf("write %s: %w", f.path, oserr.Bare(err))
	}
	return nil
}

// Discard removes the temporary file. After Commit it does nothing; it is idempotent.
func (f *File) Discard() {
	if f.temp == nil {
		return
	}
	f.temp.Close()
	_ = os.Remove(f.temp.Name())
	f.temp = nil
}
