package joblog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Log is the output of one stream. All methods may be called at the same time, from any goroutine.
type Log struct {
	path  string
	dir   *os.File // the directory of its file; nil: that of path
	limit int64    // 0: none

	appending sync.Mutex // held by the Write that appends; readers never take it
	file      *os.File   // nil while all bytes are in head; then readers do not use it

	mu      sync.Mutex    // guards the following; all but seen, removed and changed change under appending too
	head    []byte        // the whole log while it is short: nil before the first byte, and once there is a file
	length  int64         // the offset of the next byte
	first   int64         // bytes before it are no longer in the file
	seen    int64         // each byte before it has been read
	dropped int64         // bytes that were written but are not in the file
	full    bool          // the limit's marker is in the file, and nothing comes after it
	err     error         // why the file is shorter than the output
	closed  bool          // length is final
	removed bool          // the file is deleted, or about to be
	changed chan struct{} // closed when length or closed changes; nil while no reader waits
}

// maxHead is the length up to which a log is kept in memory. Most jobs write less, and to make a file can take longer
// than such a job runs.
const maxHead = 4 << 10

// New returns an empty log. When it becomes longer than 4 KiB, or than its limit, its file is created at path, readable
// by our user only; no file may exist there. A limit above 0 bounds the file. When it is reached, bytes that have been
// read make room for new ones. If too few have been read, a line that says so ends the log, and the rest is dropped. A
// limit of 0 is no limit, and a negative one panics. The caller must call Close after the last Write, and Remove after
// the last read.
func New(path string, limit int64) *Log {
	if limit < 0 {
		panic("joblog: limit is negative")
	}
	return &Log{path: path, limit: limit}
}

// In sets the open directory of the log's file, in place of that of its path: the file is made and removed there even
// if the directory is moved or replaced. In must be called before the first Write, and dir must stay open until Remove.
func (l *Log) In(dir *os.File) { l.dir = dir }

// create makes the file.
func (l *Log) create() (*os.File, error) {
	const flags = os.O_CREATE | os.O_EXCL | os.O_RDWR
	if l.dir == nil {
		return os.OpenFile(l.path, flags, 0o600)
	}
	fd, err := unix.Openat(int(l.dir.Fd()), filepath.Base(l.path), flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), l.path), nil
}

// unlink removes the file.
func (l *Log) unlink() error {
	if l.dir == nil {
		return os.Remove(l.path)
	}
	return unix.Unlinkat(int(l.dir.Fd()), filepath.Base(l.path), 0)
}

// Len returns the length of the log, the limit's marker included. It grows until Close.
func (l *Log) Len() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length
}

// Size returns how many bytes of the log are kept.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length - l.first
}

// Dropped returns how many bytes were written and are not in the log, because of its limit or an error.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Err returns the error that cut the log off, such as a full disk. It is nil if the log is complete, or if only its
// limit cut it off. The bytes before the error stay readable.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the log and wakes the readers that wait at its end. It waits for a Write that is under way. The log can be
// read until Remove. It is idempotent and returns the same error as Err.
func (l *Log) Close() error {
	l.appending.Lock()
	defer l.appending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wakeLocked()
	return l.err
}

// Remove closes the log and deletes its file. Reads under way end first or fail; later ones fail with [fs.ErrClosed].
// It is idempotent, and a file that is already gone is no error.
func (l *Log) Remove() error {
	_ = l.Close() // Err returns the same error
	l.mu.Lock()
	first := !l.removed
	l.removed = true
	l.mu.Unlock()
	if !first || l.file == nil {
		return nil
	}
	l.file.Close() // a deleted file needs no flush
	if err := l.unlink(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove log %s: %w", l.path, oserr.Bare(err))
	}
	return nil
}
