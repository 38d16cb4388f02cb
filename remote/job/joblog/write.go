package joblog

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Write appends p. It waits for the file system and for other calls of Write, never for a reader. It returns len(p)
// even if p is dropped, past the limit or after an error (see Err), so that the writing process goes on. It fails only
// after Close, with [fs.ErrClosed].
func (l *Log) Write(p []byte) (int, error) {
	l.appending.Lock()
	defer l.appending.Unlock()
	if l.closed {
		return 0, fmt.Errorf("write log %s: %w", l.path, fs.ErrClosed)
	}
	if l.keepInMemory(p) {
		return len(p), nil
	}
	keep, marker := p, []byte(nil)
	if l.err == nil && !l.full {
		l.spill()
	}
	if l.full || l.err != nil {
		keep = nil
	} else if room := l.room(int64(len(p))); room < int64(len(p)) {
		keep, marker = p[:room], l.marker()
	}
	kept, err := l.put(keep, l.length)
	marked := 0
	if err == nil {
		marked, err = l.put(marker, l.length+int64(kept))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = l.full || marker != nil
	l.length += int64(kept + marked)
	l.dropped += int64(len(p) - kept)
	if err != nil {
		l.failLocked(err)
	}
	if kept+marked > 0 {
		l.wakeLocked()
	}
	return len(p), nil
}

// keepInMemory appends p to the log in memory, and reports whether that has room for it.
func (l *Log) keepInMemory(p []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	length := l.length + int64(len(p))
	if l.file != nil || l.err != nil || length > maxHead || l.limit > 0 && length > l.limit {
		return false
	}
	l.head = append(l.head, p...)
	if l.length = length; len(p) > 0 {
		l.wakeLocked()
	}
	return true
}

// spill creates the file, and writes the bytes that are in memory to it.
func (l *Log) spill() {
	if l.file != nil {
		return
	}
	file, err := l.create()
	if err == nil {
		l.file = file
		_, err = file.WriteAt(l.head, 0)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failLocked(err)
		return
	}
	l.head = nil
}

// failLocked ends the log with err, for good: if later bytes found room again, they would stand at wrong offsets.
func (l *Log) failLocked(err error) {
	l.err = fmt.Errorf("write log %s: %w", l.path, oserr.Hint(oserr.Bare(err), filepath.Dir(l.path)))
}

// room returns how many of the next n bytes fit into the limit. If they do not all fit, it first drops bytes that have
// been read. It keeps the last quarter of the limit: a reader whose connection breaks starts again a little before its
// end.
func (l *Log) room(n int64) int64 {
	free := l.limit - l.Size()
	if l.limit == 0 || n <= free {
		return n
	}
	l.mu.Lock()
	before := l.first
	l.first = max(l.first, l.seen-l.limit/4) // before the hole is made: from now on no read returns these bytes
	gone := l.first - before
	l.mu.Unlock()
	const hole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if gone > 0 && unix.Fallocate(int(l.file.Fd()), hole, before, gone) != nil {
		l.mu.Lock()
		l.first = before // this file system cannot make holes
		l.mu.Unlock()
		gone = 0
	}
	return min(n, free+gone)
}

// put writes p at the offset at and returns how many bytes it has written.
func (l *Log) put(p []byte, at int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return l.file.WriteAt(p, at)
}

// marker returns the last line of a log that has reached its limit.
func (l *Log) marker() []byte {
	return fmt.Appendf(nil, "\n[output limit of %d bytes reached, the rest is dropped]\n", l.limit)
}

// wakeLocked wakes all readers that wait.
func (l *Log) wakeLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
