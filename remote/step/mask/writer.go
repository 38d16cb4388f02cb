package mask

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
)

// block is how much of a Write is looked at at once. It bounds what is known of it, and what is copied.
const block = 32 << 10

var errClosed = fmt.Errorf("write masked stream: %w", fs.ErrClosed)

// Writer passes on what is written to it, with the secrets of its Set replaced. It may be used by several
// goroutines; what they write is one stream, in the order the calls arrive.
//
// It holds back the end of what was written as long as that may be the beginning of a secret: less bytes
// than the longest form of a secret has, and none where none can have begun. Where nothing was replaced
// bytes are passed on as they are, in the slices they came in if possible.
type Writer struct {
	set *Set

	mu     sync.Mutex // guards the following
	to     io.Writer
	err    error // what Write returns
	closed bool
	with   *automaton
	at     int32  // the node with has reached
	held   []byte // what is not decided: as many bytes as at is deep
	found  spans  // that have to do with held, relative to its end
	out    []byte // what is passed on next
}

// NewWriter returns a Writer to to, which is called by one goroutine at a time and is not closed. The
// caller ends the stream with Close.
func (s *Set) NewWriter(to io.Writer) *Writer {
	return &Writer{set: s, to: to, with: s.automaton()}
}

// Write writes p. When to fails its error is returned now and from all later calls, and what was held back
// is lost. After Close the error is [fs.ErrClosed].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.renew()
	rest := p
	if w.with.empty() {
		w.err = w.pass(p)
		rest = nil
	}
	for len(rest) > 0 && w.err == nil {
		piece := rest[:min(len(rest), block)]
		rest = rest[len(piece):]
		w.mask(piece)
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// Flush passes on what is held back; after Close that is nothing. Should the rest of a secret come after it, neither part is masked: it
// is for the end of a stream, or where nobody is to wait for more.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	return w.flush()
}

// Close is Flush, after which nothing can be written. It is idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	err := w.flush()
	w.err = cmp.Or(err, errClosed)
	return err
}

// renew goes over to the secrets there are now. What is held back is looked at once more.
func (w *Writer) renew() {
	a := w.set.automaton()
	if a == w.with {
		return
	}
	held := w.held
	w.with, w.at, w.held = a, 0, nil
	w.found = slices.DeleteFunc(w.found, func(f span) bool { return !f.shown }) // the others are found again
	w.found.move(-len(held))
	if len(held) > 0 {
		w.mask(held)
	}
}

// mask takes p and passes on what is decided.
func (w *Writer) mask(p []byte) {
	w.at = w.with.open(w.with.scan(w.at, p, w.found.add))
	undecided := int(w.with.depth[w.at])
	w.emit(p, len(p)-undecided)
	if len(p) >= undecided {
		w.held = append(w.held[:0], p[len(p)-undecided:]...)
	} else {
		w.held = append(w.held[len(w.held)+len(p)-undecided:], p...)
	}
	w.found.move(len(p))
}

// emit passes on what lies before the place to, of what is held and p. A span that begins before it cannot
// begin any earlier, as nothing that begins there will be found any more, though it may end later.
func (w *Writer) emit(p []byte, to int) {
	from := -len(w.held)
	if from == 0 && len(w.found) == 0 {
		w.err = w.pass(p[:to])
		return
	}
	w.out = w.out[:0]
	kept := w.found[:0]
	for _, f := range w.found {
		if f.from < to {
			w.take(p, from, f.from)
			if !f.shown {
				w.out = append(w.out, Replacement...)
				f.shown = true
			}
			from = max(from, f.to)
		}
		if f.to > to {
			kept = append(kept, f)
		}
	}
	w.found = kept
	w.take(p, from, to)
	w.err = w.pass(w.out)
}

// take adds what lies between two places of what is held and p, if anything does, to what is passed on.
func (w *Writer) take(p []byte, from, to int) {
	if from >= to {
		return
	}
	if from < 0 {
		n := len(w.held)
		w.out = append(w.out, w.held[n+from:n+min(to, 0)]...)
	}
	if to > 0 {
		w.out = append(w.out, p[max(from, 0):to]...)
	}
}

// pass writes p to where all goes.
func (w *Writer) pass(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n, err := w.to.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// flush is Flush, with mu held.
func (w *Writer) flush() error {
	if w.err != nil {
		return w.err
	}
	w.emit(nil, 0)
	w.at, w.held, w.found = 0, w.held[:0], w.found[:0]
	return w.err
}
