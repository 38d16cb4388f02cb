package joblog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Log is the output of one stream. All methods may be called at the same time, from any goroutine.
type Log struct {
	path  string
	limit int64 // 0: none

	appending sync.Mutex // held by the one Write that appends; readers never take it
	file      *os.File   // nil before the first byte; readers look at it only when there is one

	mu      sync.Mutex    // guards the following
	length  int64         // bytes of the file that may be read
	dropped int64         // bytes that were written but are not in the file
	full    bool          // the limit's marker is in the file, nothing follows it
	err     error         // why the file has less than was written
	closed  bool          // length is final
	removed bool          // so is the file's end
	changed chan struct{} // closed with the next change of length or closed; nil while nobody waits
}

// New returns an empty log. Its file, path, is made with the first byte, readable by our user alone; there
// must be nothing at path then. A limit above 0 bounds the log: past that many bytes a line says so, and the
// rest is dropped. With 0 there is none; a negative one is a mistake of the caller, and panics. The caller
// must call Close after the last Write, and Remove when nobody will read the log any more.
func New(path string, limit int64) *Log {
	if limit < 0 {
		panic("joblog: limit is negative")
	}
	return &Log{path: path, limit: limit}
}

// Len returns how many bytes can be read now, the limit's marker included. It grows until Close.
func (l *Log) Len() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length
}

// Dropped returns how many bytes were written and are not in the log, because of its limit or an error.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Err returns why the log has less than was written to it, as a full disk; nil if it is complete or
// ended by its limit only. What it has stays readable.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the log: readers find its end, and those that wait at it are woken. It waits for a Write
// that is under way. Reading goes on until Remove. It is idempotent and returns what Err does.
func (l *Log) Close() error {
	l.appending.Lock()
	defer l.appending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wakeLocked()
	return l.err
}

// Remove closes the log and deletes its file. Reads under way end first or fail; later ones fail with
// [fs.ErrClosed]. It is idempotent, and a file that is gone already is no error.
func (l *Log) Remove() error {
	_ = l.Close() // its error is Err's
	l.mu.Lock()
	first := !l.removed
	l.removed = true
	l.mu.Unlock()
	if !first || l.file == nil {
		return nil
	}
	l.file.Close() // nothing is left to be flushed to a file that goes away
	if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove log %s: %w", l.path, oserr.Bare(err))
	}
	return nil
}
