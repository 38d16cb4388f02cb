// Package coalesce gathers small writes into large ones, without a timer: what is written while a write
// is under way goes out together with the next.
package coalesce

import (
	"errors"
	"io"
	"sync"
)

// Writer gathers writes for another Writer. Write and Close may be called at the same time.
type Writer struct {
	to   io.Writer
	size int
	hold func(p []byte) bool
	few  int // writes of fewer bytes go out at once when nothing else does

	mu      sync.Mutex // guards the following
	changed sync.Cond
	pending []byte // at most size bytes
	spare   []byte // the buffer that is not pending
	held    bool   // what is pending waits for the next Write
	busy    bool   // a write of the underlying Writer is under way
	closed  bool
	err     error // of to
}

// ErrClosed is returned by Write after Close.
var ErrClosed = errors.New("coalesce: write after Close")

// New returns a Writer that hands to at most size bytes at a time. hold, which may be nil, is asked about
// each Write whether it is worth nothing without the next, such as a header without its body.
func New(to io.Writer, size int, hold func(p []byte) bool) *Writer {
	w := &Writer{to: to, size: size, hold: hold}
	w.changed.L = &w.mu
	return w
}

// Directly makes writes of fewer than n bytes go out at once, by the caller of Write, when nothing else is
// under way: a small message is not handed from goroutine to goroutine. Such a Write is not woken by Close.
// It must be called before the first Write.
func (w *Writer) Directly(n int) *Writer {
	w.few = n
	return w
}

// Run writes what Write gathers. It returns nil once Close was called and everything is written, or the
// first error of the underlying Writer. Its owner runs it in a goroutine, once.
func (w *Writer) Run() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.busy || w.err == nil && !w.closed && (len(w.pending) == 0 || w.held && len(w.pending) < w.size) {
			w.changed.Wait()
		}
		if len(w.pending) == 0 || w.err != nil {
			w.pending, w.spare = nil, nil
			return w.err
		}
		out := w.pending
		w.pending, w.spare = w.spare[:0], nil
		w.writeLocked(out)
		w.spare = out
	}
}

// writeLocked writes p without the lock.
func (w *Writer) writeLocked(p []byte) {
	w.busy = true
	w.changed.Broadcast()
	w.mu.Unlock()
	_, err := w.to.Write(p)
	w.mu.Lock()
	w.busy = false
	if err != nil && w.err == nil {
		w.err = err
	}
	w.changed.Broadcast()
}

// Write takes p. It waits while too much is pending, so the speed of the underlying Writer is that of
// who writes. The error is that of an earlier write, or says that the Writer is closed.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.hold != nil && w.hold(p)
	if len(p) < w.few && !held && !w.busy && len(w.pending) == 0 && !w.closed && w.err == nil {
		w.writeLocked(p)
		if w.err != nil {
			return 0, w.err
		}
		return len(p), nil
	}
	total := 0
	for {
		switch {
		case w.err != nil:
			return total, w.err
		case w.closed:
			return total, ErrClosed
		}
		n := min(len(p), w.size-len(w.pending))
		w.pending = append(w.pending, p[:n]...)
		p = p[n:]
		total += n
		if len(p) == 0 {
			break
		}
		w.held = false
		w.changed.Broadcast()
		w.changed.Wait()
	}
	w.held = held
	if !held {
		w.changed.Broadcast()
	}
	return total, nil
}

// Close ends Run once what is pending is written, and wakes a Write that waits. It does not wait, and is
// idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
	return nil
}
