package joblog

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/oserr"
)

// ErrOffset is wrapped by the error of a read at an offset the log does not have: a negative one, or one
// past the end of a closed log.
var ErrOffset = errors.New("offset out of range")

// ReadAt reads at least one byte at off into p. It waits for that byte, also if off is past the present end. At the end
// of a closed log it returns [io.EOF], past it an ErrOffset; if ctx ends, its cause. Unlike [io.ReaderAt] it returns
// fewer bytes than len(p), with no error, when there are no more yet.
func (l *Log) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read log %s: %w: %d is negative", l.path, ErrOffset, off)
	}
	length, err := l.await(ctx, off)
	if err != nil || len(p) == 0 {
		return 0, err
	}
	n, err := l.file.ReadAt(p[:min(int64(len(p)), length-off)], off)
	switch {
	case n > 0:
		return n, nil // the next read returns the error
	case errors.Is(err, io.EOF):
		// The file is shorter than the log. A reader must not take that for the log's end.
		err = io.ErrUnexpectedEOF
	}
	return 0, fmt.Errorf("read log %s: %w", l.path, oserr.Bare(err))
}

// await waits until the log is longer than off, and returns its length. The errors are those of ReadAt.
func (l *Log) await(ctx context.Context, off int64) (int64, error) {
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		length, changed, err := l.at(off)
		if changed == nil {
			return length, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// at returns the log's length if it has a byte at off, an error if it never will, or else a channel that is closed with
// the next change.
func (l *Log) at(off int64) (length int64, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case off < l.length:
		return l.length, nil, nil
	case l.closed && off == l.length:
		return 0, nil, io.EOF
	case l.closed:
		return 0, nil, fmt.Errorf("read log %s: %w: %d is past the end at %d", l.path, ErrOffset, off, l.length)
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return 0, l.changed, nil
}
