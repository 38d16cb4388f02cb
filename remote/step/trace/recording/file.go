package recording

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
)

// File is the file of a trace that will be written later. It reserves room on the disk under a temporary name, so that
// the trace is not lost if the disk fills up in the meantime. It is not safe for concurrent use, except for Open.
type File struct {
	path     string   // empty for a file without a name
	dir      string   // its directory, for errors
	temp     *os.File // nil after Commit and Discard; a file without a name stays open after Commit
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
	f := &File{path: path, dir: filepath.Dir(path)}
	return f.create(f.dir, "."+base[:min(len(base), 200)], size) // it may have the maximal length already
}

// CreateNameless reserves room for size bytes on the disk of the open directory dir. The file has no name there, so no
// job can put another one in its place. It takes its room until Discard, which the caller must call.
func CreateNameless(dir *os.File, size int64) (*File, error) {
	return (&File{dir: dir.Name()}).create(rmtree.PathOf(dir), ".trace", size)
}

func (f *File) create(dir, name string, size int64) (_ *File, err error) {
	f.temp, err = os.CreateTemp(dir, name+".tmp") // of mode 0600
	if err == nil && f.path == "" {
		err = os.Remove(f.temp.Name())
	}
	if err != nil {
		f.Discard()
		return nil, f.explain(err)
	}
	if err := f.Reserve(size); err != nil {
		f.Discard()
		return nil, err
	}
	return f, nil
}

// name names the file in errors.
func (f *File) name() string { return cmp.Or(f.path, "the trace") }

// explain returns an error of writing the file with its name and a remedy.
func (f *File) explain(err error) error {
	return fmt.Errorf("write %s: %w", f.name(), oserr.Hint(oserr.Bare(err), f.dir))
}

// Reserve reserves room for size bytes in all. It never reduces the room, and does nothing on a file system that cannot
// reserve.
func (f *File) Reserve(size int64) error {
	if f.temp == nil || size <= f.reserved {
		return nil
	}
	err := unix.Fallocate(int(f.temp.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("reserve room for %s: %w", f.name(), oserr.Hint(err, f.dir))
	}
	f.reserved = size
	return nil
}

// Write writes the next piece of the trace.
func (f *File) Write(p []byte) (int, error) {
	if f.temp == nil {
		return 0, fmt.Errorf("write %s: %w", f.name(), fs.ErrClosed)
	}
	n, err := f.temp.Write(p)
	f.written += int64(n)
	if err != nil {
		return n, f.explain(err)
	}
	return n, nil
}

// Commit moves the written file to path. It replaces the file there completely or, after an error, not at all. It ends
// f, unless f has no name.
func (f *File) Commit() error {
	if f.temp == nil {
		return fmt.Errorf("write %s: %w", f.name(), fs.ErrClosed)
	}
	temp := f.temp
	err := temp.Truncate(f.written) // releases the rest of the reserved room
	if f.path == "" {
		return oserr.Bare(err)
	}
	f.temp = nil
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
		return f.explain(err)
	}
	return nil
}

// Open opens the file at its path, or the one without a name until its Discard. The caller closes it. It may be called
// by any goroutine once Commit has returned.
func (f *File) Open() (file *os.File, err error) {
	if f.path != "" {
		return os.Open(f.path)
	}
	raw, err := f.temp.SyscallConn() // after Discard another file may have its number
	if err != nil {
		return nil, err
	}
	closed := raw.Control(func(fd uintptr) { file, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	return file, cmp.Or(closed, err)
}

// Discard removes the temporary file, or the one without a name. After the Commit of a file with a name it does
// nothing. It is idempotent.
func (f *File) Discard() {
	if f.temp == nil {
		return
	}
	f.temp.Close()
	if f.path != "" {
		_ = os.Remove(f.temp.Name())
		f.temp = nil
	}
}
