package joblog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrOffset is returned for an offset that is negative, or beyond the end of a log that grows no more.
var ErrOffset = errors.New("offset is outside the log")

// Log is one stream. The bytes are kept exactly, without regard to lines. Any number of readers may
// follow it; none of them ever holds up the writer. It is safe for concurrent use.
type Log struct {
	file  *os.File
	limit int64

	mu      sync.Mutex // guards the following
	size    int64      // bytes kept, which readers may read
	dropped int64      // bytes not kept
	err     error      // why bytes were not kept, other than the limit
	closed  bool
	grown   chan struct{} // closed at the next change, then replaced
}

// Create makes a new log in a file of its own, mode 0600, which must not exist. At most limit bytes are
// kept, and a line that says so; if limit is zero, all. The caller closes and removes it.
func Create(path string, limit int64) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	return &Log{file: file, limit: limit, grown: make(chan struct{})}, nil
}

// Write appends p. It always takes all of p, so that a process is not held up or ended by its log:
// what is beyond the limit, or meets a full disk, is counted and dropped. See Err and Dropped.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, fmt.Errorf("write log: %w", os.ErrClosed)
	}
	keep := p
	if l.dropped > 0 || l.err != nil {
		keep = nil
	} else if l.limit > 0 && l.size+int64(len(p)) > l.limit {
		keep = p[:l.limit-l.size]
	}
	l.appendLocked(keep)
	if cut := int64(len(p) - len(keep)); cut > 0 {
		if l.dropped == 0 && l.err == nil {
			l.appendLocked(fmt.Appendf(nil, "\n[output limit of %d bytes reached, the rest is dropped]\n", l.limit))
		}
		l.dropped += cut
	}
	return len(p), nil
}

// appendLocked writes p to the file and tells the readers. What a failed write left counts as kept.
func (l *Log) appendLocked(p []byte) {
	if len(p) == 0 {
		return
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	if err != nil {
		l.err = fmt.Errorf("write log: %w", err)
		l.dropped += int64(len(p) - n)
	}
	l.changedLocked()
}

// changedLocked wakes all readers.
func (l *Log) changedLocked() {
	close(l.grown)
	l.grown = make(chan struct{})
}

// ReadAt reads bytes from offset off into p and returns at least one. While there is none it waits,
// until the log grows, is closed (io.EOF) or ctx ends (its cause). An offset that is negative, or
// beyond the end of a closed log, is ErrOffset.
func (l *Log) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read log at %d: %w", off, ErrOffset)
	}
	for {
		l.mu.Lock()
		size, closed, grown := l.size, l.closed, l.grown
		l.mu.Unlock()
		switch {
		case off < size:
			n, err := l.file.ReadAt(p[:min(int64(len(p)), size-off)], off)
			if err != nil && !errors.Is(err, io.EOF) {
				return n, fmt.Errorf("read log at %d: %w", off, err)
			}
			return n, nil
		case closed && off > size:
			return 0, fmt.Errorf("read log at %d of %d bytes: %w", off, size, ErrOffset)
		case closed:
			return 0, io.EOF
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Len returns how many bytes can be read so far.
func (l *Log) Len() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// Dropped returns how many bytes were not kept.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Err returns why bytes were not kept, other than the limit: a full disk, above all. nil if none.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the stream: no more writes; readers get what there is, then io.EOF. Idempotent; it
// returns Err.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.changedLocked()
	}
	return l.err
}

// Remove closes the log and deletes its file. Reads fail from now on.
func (l *Log) Remove() error {
	_ = l.Close() // what was lost no longer matters
	return errors.Join(l.file.Close(), os.Remove(l.file.Name()))
}
