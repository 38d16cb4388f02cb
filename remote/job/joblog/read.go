package joblog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/stepmux/stepmux/internal/oserr"
)

// ErrOffset is wrapped by the error of a read at an offset that the log does not have: it is negative, past the end of
// a closed log, or its byte has been dropped to make room.
var ErrOffset = errors.New("offset out of range")

// ReadAt reads at least one byte at off into p. It waits for that byte, also if off is past the present end. At the end
// of a closed log it returns [io.EOF], past it ErrOffset; if ctx ends, its cause. Unlike [io.ReaderAt] it may return
// fewer bytes than len(p) without an error, when there are no more yet.
func (l *Log) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read log %s: %w: %d is negative", l.path, ErrOffset, off)
	}
	length, err := l.await(ctx, off)
	if err != nil || len(p) == 0 {
		return 0, err
	}
	p = p[:min(int64(len(p)), length-off)]
	n, held, err := l.readMemory(p, off)
	if !held {
		n, err = l.file.ReadAt(p, off)
	}
	switch {
	case n > 0:
		return l.markRead(off, n) // the next read returns the error
	case errors.Is(err, io.EOF):
		// The file is shorter than the log. A reader must not mistake that for the log's end.
		err = io.ErrUnexpectedEOF
	}
	return 0, fmt.Errorf("read log %s: %w", l.path, oserr.Bare(err))
}

// readMemory reads from the log while it is in memory. held reports whether it is there.
func (l *Log) readMemory(p []byte, off int64) (n int, held bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.head == nil:
		return 0, false, nil
	case l.removed:
		return 0, true, fs.ErrClosed
	default:
		return copy(p, l.head[off:]), true, nil
	}
}

// markRead notes that n bytes at off were read, so that they may be dropped. If they were dropped during the read, the
// reader may have got zeros in their place; then markRead returns the error of ReadAt.
func (l *Log) markRead(off int64, n int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if off < l.first {
		return 0, l.goneLocked(off)
	}
	if off <= l.seen {
		l.seen = max(l.seen, off+int64(n))
	}
	return n, nil
}

func (l *Log) goneLocked(off int64) error {
	return fmt.Errorf("read log %s: %w: %d is before %d, and is not kept any more: it was read, and the limit is %d bytes",
		l.path, ErrOffset, off, l.first, l.limit)
}

// await waits until the log is longer than off, and returns its length. The errors are those of ReadAt.
func (l *Log) await(ctx context.Context, off int64) (int64, error) {
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		l.mu.Lock()
		length, closed := l.length, l.closed
		if off >= length && !closed && l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		var gone error
		if off < l.first {
			gone = l.goneLocked(off)
		}
		l.mu.Unlock()
		switch {
		case gone != nil:
			return 0, gone
		case off < length:
			return length, nil
		case closed && off == length:
			return 0, io.EOF
		case closed:
			return 0, fmt.Errorf("read log %s: %w: %d is past the end at %d", l.path, ErrOffset, off, length)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
