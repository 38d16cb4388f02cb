// Package coalesce gathers small writes into large ones, without a timer: bytes that are written while a write is
// under way go out together with the next.
//
// The owner of a [Writer] runs Run in a goroutine, and ends it with Close.
package coalesce

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"sync"
)

// Writer gathers writes for another Writer. Its methods are safe for concurrent use.
type Writer struct {
	to   io.Writer
	size int

	mu       sync.Mutex // guards the following
	changed  sync.Cond
	pending  []byte // at most size bytes
	spare    []byte // the buffer that is not pending
	busy     bool   // Run or Direct uses to
	direct   int    // waiting calls of Direct; Run lets them go first
	reserved int    // bytes reserved and not yet released
	queue    []*reservation
	unused   []*reservation // for later calls
	closed   bool
	err      error // of to
}

// reservation is a waiting call of Reserve.
type reservation struct {
	n     int
	ready chan struct{} // gets an element once the bytes are reserved, or never can be
}

// ErrClosed is the error of Write after Close.
var ErrClosed = errors.New("coalesce: write after Close")

// New returns a Writer that gathers at most size bytes and writes them to to in one piece.
func New(to io.Writer, size int) *Writer {
	w := &Writer{to: to, size: size}
	w.changed.L = &w.mu
	return w
}

// Run writes the bytes that Write gathers. It returns nil once Close was called and everything is written, or the
// first error of the underlying Writer. Its owner runs it in a goroutine, once.
func (w *Writer) Run() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.err == nil && (w.busy || w.direct > 0 || !w.closed && len(w.pending) == 0) {
			w.changed.Wait()
		}
		if len(w.pending) == 0 || w.err != nil {
			w.pending, w.spare = nil, nil
			return w.err
		}
		w.writeLocked(func(p []byte) error {
			_, err := w.to.Write(p)
			return err
		})
	}
}

// writeLocked passes the pending bytes to write. It calls write without the lock.
func (w *Writer) writeLocked(write func(p []byte) error) {
	out := w.pending
	if len(out) > 0 {
		w.pending, w.spare = w.spare[:0], nil
		w.grantLocked()
		w.changed.Broadcast()
	}
	w.busy = true
	w.mu.Unlock()
	err := write(out)
	w.mu.Lock()
	w.busy = false
	if len(out) > 0 {
		w.spare = out
	}
	if err != nil {
		w.err = err
		w.grantLocked()
	}
	w.changed.Broadcast()
}

// Direct lets write use the underlying Writer itself, for data that must not be copied. It waits for the use by others
// to end. write gets the bytes that were gathered before; it must write them first and not keep them.
//
// Direct returns the error of write, which also ends the Writer, the error of an earlier write, or ErrClosed. Close
// does not wake a write that has begun. The caller makes sure that no WriteAll is under way.
func (w *Writer) Direct(write func(before []byte) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.direct++
	for w.busy && !w.closed && w.err == nil {
		w.changed.Wait()
	}
	w.direct--
	if w.closed || w.err != nil {
		w.changed.Broadcast() // Run may continue
		return cmp.Or(w.err, ErrClosed)
	}
	w.writeLocked(write)
	return w.err
}

// Write calls WriteAll with one piece.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.WriteAll(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAll takes pieces, which are written together as far as they fit. It waits while the Writer is full, so the
// caller is only as fast as the underlying Writer. The error is that of an earlier write, or ErrClosed.
func (w *Writer) WriteAll(pieces ...[]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pieces {
		for {
			switch {
			case w.err != nil:
				return w.err
			case w.closed:
				return ErrClosed
			}
			n := min(len(p), w.size-len(w.pending))
			w.pending = append(w.pending, p[:n]...)
			p = p[n:]
			if len(p) == 0 {
				break
			}
			w.changed.Broadcast()
			w.changed.Wait()
		}
	}
	w.changed.Broadcast()
	return nil
}

// Reserve waits until n bytes fit into half of the Writer. Waiting calls are served in their order. It returns false if
// stop is closed first. n must be at most a quarter of the Writer's size.
//
// A caller that reserves its bytes never waits in Write, which cannot be stopped: all waiting is done here. It calls
// Release once Write has returned. Once the Writer is closed or has failed, Reserve returns true at once, and Write
// returns the error.
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

// Release returns reserved bytes.
func (w *Writer) Release(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserved -= n
	w.grantLocked()
}

func (w *Writer) fitsLocked(n int) bool {
	return len(w.pending)+w.reserved+n <= w.size/2 || w.closed || w.err != nil
}

// grantLocked lets waiting calls of Reserve return, in their order, as far as there is room.
func (w *Writer) grantLocked() {
	for len(w.queue) > 0 && w.fitsLocked(w.queue[0].n) {
		r := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		w.reserved += r.n
		r.ready <- struct{}{} // the channel has room
	}
}

// Close ends Run once all pending bytes are written, and wakes a waiting Write, Reserve and Direct. It does not wait,
// and is idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
	w.grantLocked()
	return nil
}
