package mask

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/remote/step/mask/tokens"
)

// block bounds the part of a Write that is masked at once, and so the spans and the copies.
const block = 32 << 10

// hold is how long the end of the data is held back after the last Write.
const hold = time.Second

var errClosed = fmt.Errorf("write masked stream: %w", fs.ErrClosed)

// Writer passes a stream on, with the secrets of its Set replaced. It is safe for concurrent use: it treats the data of
// all callers as one stream, in the order of the calls.
//
// It holds back the end of the data while that may be the beginning of a secret: fewer bytes than the longest form of a
// secret. If nothing is written for a second, it passes on the part that may be shown, a quarter of the secret and at
// most three bytes, and a replacement for the other bytes. If the secret goes on later, no more of it is passed on.
// Each Write starts the second again: a secret that is written slowly is replaced as a whole. So a byte is held back
// until a second passes without a Write or, at the latest, until as many bytes follow it as the longest form has.
//
// Data without secrets is passed on in the slices of the callers, without a copy if possible.
type Writer struct {
	set *Set

	mu     sync.Mutex // guards the following
	to     io.Writer
	err    error // the result of Write
	closed bool
	with   *automaton
	at     int32       // the node of the automaton after the last byte
	held   []byte      // the undecided bytes; their number is the depth of at
	passed int         // how many bytes of held were passed on or replaced because the second was over
	found  spans       // spans that touch held, relative to its end
	out    []byte      // the next bytes to pass on
	timer  *time.Timer // calls expire while held has bytes that were not passed on; nil before the first
}

// NewWriter returns a Writer to to. It calls to from one goroutine at a time and does not close it. The caller ends the
// stream with Close.
func (s *Set) NewWriter(to io.Writer) *Writer {
	if len(s.Prefixes) > 0 {
		to = &tokens.Writer{To: to, Prefixes: s.Prefixes}
	}
	return &Writer{set: s, to: to, with: s.automaton()}
}

// Write writes p. If the underlying writer fails, this and all later calls return its error, and the held-back bytes
// are lost. After Close the error is [fs.ErrClosed].
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
	w.wait()
	return len(p), nil
}

// wait restarts the second of the held-back bytes, if there are any.
func (w *Writer) wait() {
	switch {
	case len(w.held) == w.passed && w.timer != nil:
		w.timer.Stop()
	case len(w.held) == w.passed:
	case w.timer != nil:
		w.timer.Reset(hold)
	default:
		w.timer = time.AfterFunc(hold, w.expire)
	}
}

// expire handles bytes that were held back for a second: it passes on those that may be shown, and replaces the others.
// They stay in held: the next bytes can complete a secret, and the rest of that is replaced then.
func (w *Writer) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || len(w.held) == w.passed {
		return
	}
	to := 0
	for v := w.at; v != 0; v = w.with.fail[v] { // for each secret that may have begun
		to = min(to, int(w.with.show[v])-int(w.with.depth[v]))
	}
	w.emit(nil, to)
	w.passed = max(w.passed, len(w.held)+to)
	if w.passed < len(w.held) && w.err == nil {
		w.found.add(0, -to)
		w.emit(nil, 0)
		w.passed = len(w.held)
	}
}

// Close passes on the held-back bytes and ends the stream. It is idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if w.timer != nil {
		w.timer.Stop() // an expire that has begun sees the error
	}
	if w.err == nil {
		w.emit(nil, 0)
	}
	err := w.err
	w.err = cmp.Or(err, errClosed)
	return err
}

// renew switches to the automaton of the present secrets. It searches the held-back bytes again.
func (w *Writer) renew() {
	a := w.set.automaton()
	if a == w.with {
		return
	}
	held := w.held
	w.with, w.at, w.held = a, 0, nil
	w.found = slices.DeleteFunc(w.found, func(f span) bool { return !f.shown }) // the others will be found again
	w.found.move(-len(held))
	if len(held) > 0 {
		w.mask(held)
	}
}

// mask searches p, and passes on all bytes that no later match can include.
func (w *Writer) mask(p []byte) {
	w.at = w.with.open(w.with.scan(w.at, p, w.found.add))
	undecided := int(w.with.depth[w.at])
	w.emit(p, len(p)-undecided)
	w.passed = max(w.passed+undecided-len(w.held)-len(p), 0)
	if len(p) >= undecided {
		w.held = append(w.held[:0], p[len(p)-undecided:]...)
	} else {
		w.held = append(w.held[len(w.held)+len(p)-undecided:], p...)
	}
	w.found.move(len(p))
}

// emit passes on the bytes of held and p before position to. The start of a span that begins before to is final; its
// end may still move.
func (w *Writer) emit(p []byte, to int) {
	from := w.passed - len(w.held)
	if from == 0 && len(w.found) == 0 {
		w.err = w.pass(p[:max(to, 0)])
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
		if f.to >= to { // its end may still move
			kept = append(kept, f)
		}
	}
	w.found = kept
	w.take(p, from, to)
	w.err = w.pass(w.out)
}

// take appends the bytes of held and p between two positions to out.
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

// pass writes p to the underlying writer.
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
