package joblog

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Write appends p. It waits for the file system and for other calls of Write, never for a reader. It returns len(p)
// even if p is dropped, past the limit or after an error (see Err), so that the writing process goes on. Only after
// Close it fails, with [fs.ErrClosed].
func (l *Log) Write(p []byte) (int, error) {
	l.appending.Lock()
	defer l.appending.Unlock()
	l.mu.Lock()
	keep, mark, at := l.roomLocked(len(p)), false, l.length
	closed := l.closed
	if keep < len(p) && l.err == nil && !l.full && !closed {
		mark = true
		l.full = true
	}
	l.mu.Unlock()
	if closed {
		return 0, fmt.Errorf("write log %s: %w", l.path, fs.ErrClosed)
	}
	n, err := l.put(p[:keep], at)
	if mark && err == nil {
		var m int
		m, err = l.put(l.marker(), at+int64(n))
		l.finish(n, m, len(p)-n, err)
		return len(p), nil
	}
	l.finish(n, 0, len(p)-n, err)
	return len(p), nil
}

// roomLocked returns how many of the next n bytes go into the file.
func (l *Log) roomLocked(n int) int {
	switch {
	case l.err != nil || l.full || l.closed:
		return 0
	case l.limit > 0:
		return int(min(int64(n), l.limit-l.length))
	}
	return n
}

// put writes p at the offset at and returns how many bytes it has written.
func (l *Log) put(p []byte, at int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if l.file == nil {
		file, err := os.OpenFile(l.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return 0, err
		}
		l.file = file
	}
	return l.file.WriteAt(p, at)
}

// marker is the last line of a log that reached its limit.
func (l *Log) marker() []byte {
	return fmt.Appendf(nil, "\n[output limit of %d bytes reached, the rest is dropped]\n", l.limit)
}

// finish publishes the bytes that a Write has put into the file.
func (l *Log) finish(written, marked, dropped int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.length += int64(written + marked)
	l.dropped += int64(dropped)
	if err != nil {
		// For good: if later bytes found room again, they would stand at wrong offsets.
		l.err = fmt.Errorf("write log %s: %w", l.path, oserr.Bare(err))
	}
	if written+marked > 0 {
		l.wakeLocked()
	}
}

// wakeLocked wakes all readers that wait.
func (l *Log) wakeLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
