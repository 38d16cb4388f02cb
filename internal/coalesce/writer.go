// Package coalesce gathers small writes into large ones, without a timer: bytes that are written while a write is
// under way go out together with the next.
//
// The owner of a [Writer] runs Run in a goroutine, and ends it with Close.
package coalesce

import (
	"errors"
	"io"
	"slices"
	"sync"
)

// Writer gathers writes for another Writer. Its methods may be called at the same time.
type Writer struct {
	to   io.Writer
	size int
	hold func(p []byte) bool

	mu       sync.Mutex // guards the following
	changed  sync.Cond
	pending  []byte // at most size bytes
	spare    []byte // the buffer that is not pending
	held     bool   // pending waits for the next Write
	reserved int    // bytes reserved and not yet released
	queue    []*reservation
	unused   []*reservation // for later calls
	closed   bool
	err      error // of to
}

// reservation is a call of Reserve that waits.
type reservation struct {
	n     int
	ready chan struct{} // has an element once the bytes are reserved, or will never be
}

// ErrClosed is returned by Write after Close.
var ErrClosed = errors.New("coalesce: write after Close")

// New returns a Writer that holds at most size bytes and hands them over in one piece. hold, which may be nil, is
// asked about each Write: if it returns true, the bytes wait for the next Write, such as a header for its body.
func New(to io.Writer, size int, hold func(p []byte) bool) *Writer {
	w := &Writer{to: to, size: size, hold: hold}
	w.changed.L = &w.mu
	return w
}

// Run writes the bytes that Write gathers. It returns nil once Close was called and everything is written, or the
// first error of the underlying Writer. Its owner runs it in a goroutine, once.
func (w *Writer) Run() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.err == nil && !w.closed && (len(w.pending) == 0 || w.held && len(w.pending) < w.size) {
			w.changed.Wait()
		}
		if len(w.pending) == 0 || w.err != nil {
			w.pending, w.spare = nil, nil
			return w.err
		}
		out := w.pending
		w.pending, w.spare = w.spare[:0], nil
		w.grantLocked()
		w.writeLocked(out)
		w.spare = out
	}
}

// writeLocked writes p without the lock.
func (w *Writer) writeLocked(p []byte) {
	w.changed.Broadcast()
	w.mu.Unlock()
	_, err := w.to.Write(p)
	w.mu.Lock()
	if err != nil && w.err == nil {
		w.err = err
		w.grantLocked()
	}
	w.changed.Broadcast()
}

// Write takes p. It waits while the Writer is full, so its caller is as fast as the underlying Writer. Its error is
// that of an earlier write, or ErrClosed.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.hold != nil && w.hold(p)
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

// Reserve waits, in the order of its calls, until n bytes fit into half of the Writer. It returns false if stop is
// closed first. A caller that reserves its bytes never waits in Write, which cannot be stopped: all waiting is done
// here. It calls Release once Write has returned. n is at most a quarter of the Writer's size. Once the Writer is
// closed or has failed, Reserve returns true at once, and Write returns the error.
func (w *Writer) Reserve(n int, stop <-chan struct{}) bool {
	w.mu.Lock()
	if len(w.queue) == 0 && w.fitsLocked(n) {
		w.reserved += n
		w.mu.Unlock()
		return true
	}
	r := w.reservationLocked()
	r.n = n
	w.queue = append(w.queue, r)
	w.mu.Unlock()
	granted := true
	select {
	case <-r.ready:
	case <-stop:
		granted = false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !granted {
		if i := slices.Index(w.queue, r); i >= 0 {
			w.queue = slices.Delete(w.queue, i, i+1)
			w.grantLocked()
		} else {
			<-r.ready // granted at the same moment
			granted = true
		}
	}
	w.unused = append(w.unused, r)
	return granted
}

func (w *Writer) reservationLocked() *reservation {
	last := len(w.unused) - 1
	if last < 0 {
		return &reservation{ready: make(chan struct{}, 1)}
	}
	r := w.unused[last]
	w.unused = w.unused[:last]
	return r
}

// Release gives reserved bytes back.
func (w *Writer) Release(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserved -= n
	w.grantLocked()
}

func (w *Writer) fitsLocked(n int) bool {
	return len(w.pending)+w.reserved+n <= w.size/2 || w.closed || w.err != nil
}

// grantLocked lets calls of Reserve return, in their order, as far as there is room.
func (w *Writer) grantLocked() {
	for len(w.queue) > 0 && w.fitsLocked(w.queue[0].n) {
		r := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		w.reserved += r.n
		r.ready <- struct{}{} // has room
	}
}

// Close ends Run once everything that is pending is written, and wakes a Write and a Reserve that wait. It does not
// wait, and is idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
	w.grantLocked()
	return nil
}
