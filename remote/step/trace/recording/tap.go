package recording

import (
	"io"
	"slices"
	"sync"
)

const (
	// tapPiece bounds a piece of the queue, in bytes, and tapQueue the number of pieces that can wait.
	tapPiece = 32 << 10
	tapQueue = 16
)

// Tap is a writer that passes a stream on, and computes the digests of its parts in a goroutine, for which Close waits.
// The stream waits for the digests only if it runs far ahead of them. It is safe for concurrent use.
type Tap struct {
	to      io.Writer
	dropped func() int64 // how many bytes to has not kept
	queue   chan piece
	done    chan struct{} // closed once the parts are final

	mu     sync.Mutex // guards the following, and the order in queue
	begun  bool       // the first part has begun
	length int64      // bytes written
	closed bool
}

// piece is a piece of the stream, or the beginning of a part.
type piece struct {
	data      *[]byte
	truncated bool
	begin     *part
}

var pieces = sync.Pool{New: func() any { b := make([]byte, 0, tapPiece); return &b }}

// NewTap returns a Tap to w. If w has a method Dropped() int64 that returns how many bytes it has not kept, parts with
// such bytes are marked as truncated. The caller must close the Tap.
func NewTap(w io.Writer) *Tap {
	t := &Tap{to: w, dropped: func() int64 { return 0 }, queue: make(chan piece, tapQueue), done: make(chan struct{})}
	if d, ok := w.(interface{ Dropped() int64 }); ok {
		t.dropped = d.Dropped
	}
	go t.sum()
	return t
}

// Write passes p on. Data before the first part belongs to no part, and data after Close has no digest.
func (t *Tap) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.dropped()
	n, err := t.to.Write(p)
	t.length += int64(n)
	if !t.begun || t.closed {
		return n, err
	}
	truncated := t.dropped() > before
	for rest := p[:n]; len(rest) > 0; {
		m := min(len(rest), tapPiece)
		data := pieces.Get().(*[]byte)
		*data = append((*data)[:0], rest[:m]...)
		t.queue <- piece{data: data, truncated: truncated}
		rest = rest[m:]
	}
	return n, err
}

// begin ends one part and begins the next, with the present markers for paths. The goroutine uses the part until Close
// has returned. A part that begins after Close is empty.
func (t *Tap) begin(paths *Paths) *part {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := newPart(t.length, Paths{known: slices.Clone(paths.known)})
	if !t.closed {
		t.queue <- piece{begin: p}
	}
	t.begun = true
	return p
}

// sum computes the digests, in the goroutine.
func (t *Tap) sum() {
	defer close(t.done)
	var at *part
	for p := range t.queue {
		if p.begin != nil {
			at = p.begin
			continue
		}
		at.write(*p.data)
		at.truncated = at.truncated || p.truncated
		pieces.Put(p.data)
	}
}

// Close ends the last part, and waits until all digests are computed. It does not close the writer, and Write still
// passes on. It is idempotent.
func (t *Tap) Close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.queue)
	}
	t.mu.Unlock()
	<-t.done
}
