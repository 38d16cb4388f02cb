package streams

import (
	"bufio"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// ReadAhead is the size of the buffer of Config.In. Larger data bypasses it. An In that is a bufio.Reader of this
	// size is used directly.
	ReadAhead = 8 << 10
	// copied bounds the data of a frame that is copied behind waiting data. It fits in ReadAhead.
	copied = 4 << 10
	// pieceSize is the size of a large piece: the largest frame of a relay's (wire.MaxRelayFrame and its header).
	pieceSize = 64<<10 + 4
)

// pieces holds large pieces.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// piece is a part of the data that waits in a stream.
type piece struct {
	data  []byte
	large *[pieceSize]byte // data is a part of it; nil for a small piece
}

// newPiece returns an empty piece with room for n bytes. Small pieces are for streams without other waiting data: with
// single bytes, a peer cannot make this end keep more than a few times the window.
func newPiece(n int, first bool) piece {
	if first && n <= copied {
		return piece{data: make([]byte, 0, n)}
	}
	large, _ := pieces.Get().(*[pieceSize]byte)
	return piece{large[:0], large}
}

// Stream is one stream of a Session. One goroutine at a time may read, and one may call Await and Send. All other
// methods may be called at any time.
type Stream struct {
	order              sync.Mutex // held while data or the end is sent: no data may follow the end
	session            *Session
	id                 uint32
	readable, writable chan struct{} // have an element if the state may have changed

	writing sync.Mutex // held by Write

	mu      sync.Mutex // guards the following
	queue   []piece
	filling bool   // data is read into the room of the last piece
	used    int    // bytes of the first piece that the reader has taken
	held    uint32 // bytes in the queue that the reader has not taken
	window  uint32 // bytes that the peer may still send
	room    uint32 // bytes that may still be sent
	ended   bool   // the peer has sent everything
	closed  bool   // this end has sent everything
	reset   bool   // the stream was reset
	timer   *time.Timer
}

func newStream(s *Session, id uint32) *Stream {
	return &Stream{
		session: s, id: id, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		window: s.cfg.Window, room: initialWindow,
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Read calls ReadUntil without a stop.
func (st *Stream) Read(p []byte) (int, error) { return st.ReadUntil(p, nil) }

// ReadUntil reads bytes from the peer. The error is io.EOF at the end. Once stop is closed, it does not wait any more
// and returns ErrStopped.
func (st *Stream) ReadUntil(p []byte, stop <-chan struct{}) (int, error) {
	for {
		var over error
		select {
		case <-st.session.done: // bytes that were received before are read first
			over = st.session.Err()
		default:
		}
		st.mu.Lock()
		n, grant := st.takeLocked(p), st.grantLocked()
		switch {
		case st.reset:
			over = ErrClosed
		case st.ended:
			over = io.EOF
		}
		st.mu.Unlock()
		if grant > 0 {
			_ = st.session.send(header{kindWindow, 0, st.id, grant}, nil, nil) // the next call returns the error
		}
		switch {
		case n > 0 || len(p) == 0:
			return n, nil
		case over != nil:
			return 0, over
		}
		select {
		case <-st.readable:
		case <-st.session.done:
		case <-stop:
			return 0, ErrStopped
		}
	}
}

// Reader reads a stream until Stop is closed; then the error is ErrStopped.
type Reader struct {
	Stream *Stream
	Stop   <-chan struct{}
}

// Read implements io.Reader.
func (r Reader) Read(p []byte) (int, error) { return r.Stream.ReadUntil(p, r.Stop) }

// takeLocked copies from the queue.
func (st *Stream) takeLocked(p []byte) int {
	total := 0
	for len(p) > 0 && len(st.queue) > 0 {
		first := &st.queue[0]
		n := copy(p, first.data[st.used:])
		p, total, st.used = p[n:], total+n, st.used+n
		if st.used < len(first.data) || st.filling && len(st.queue) == 1 {
			break
		}
		if first.large != nil {
			pieces.Put(first.large)
		}
		st.queue, st.used = slices.Delete(st.queue, 0, 1), 0
	}
	if len(st.queue) == 0 && cap(st.queue) > 4 {
		st.queue = nil // so that an idle stream keeps little memory
	}
	st.held -= uint32(total)
	return total
}

// grantLocked returns by how much the peer's window grows. It grants few large portions.
func (st *Stream) grantLocked() uint32 {
	most := st.session.cfg.Window
	grant := most - st.held - st.window
	if grant < most/2 || st.ended || st.reset {
		return 0
	}
	st.window += grant
	return grant
}

// receive takes n bytes of data from in. They count until the reader takes them from the queue. Bytes that were dropped
// are granted again.
func (st *Stream) receive(in *bufio.Reader, n uint32) error {
	st.mu.Lock()
	fits, gone := n <= st.window && !st.ended, st.reset
	st.mu.Unlock()
	switch {
	case gone: // giveUp was called just now
		return discard(in, n)
	case !fits:
		return broken("the peer sent more than its window, or after its end")
	}
	for n > copied {
		m, err := st.receiveLarge(in, int(n))
		if err != nil {
			return err
		}
		n -= uint32(m)
	}
	if n == 0 {
		return nil
	}
	return st.receiveSmall(in, int(n))
}

// discard drops n bytes of in, which no stream takes.
func discard(in io.Reader, n uint32) error {
	_, err := io.CopyN(io.Discard, in, int64(n))
	return err
}

// heldLocked counts n bytes that have come to the queue.
func (st *Stream) heldLocked(n int) {
	st.held += uint32(n)
	st.window -= uint32(n)
}

// receiveLarge reads at most n bytes into the room of the last piece, or of a new one if that is full, and returns
// their number. So the pieces of an unread stream are full, even if the frames are small.
func (st *Stream) receiveLarge(in *bufio.Reader, n int) (int, error) {
	st.mu.Lock()
	last := len(st.queue) - 1
	if last < 0 || cap(st.queue[last].data) == len(st.queue[last].data) {
		st.queue = append(st.queue, newPiece(n, false))
		last++
	}
	data := st.queue[last].data
	n = min(n, cap(data)-len(data))
	st.filling = true
	st.mu.Unlock()
	if _, err := io.ReadFull(in, data[len(data):len(data)+n]); err != nil {
		return 0, err
	}
	st.mu.Lock()
	st.filling = false
	last = len(st.queue) - 1
	st.queue[last].data = st.queue[last].data[:len(data)+n]
	st.heldLocked(n)
	st.mu.Unlock()
	notify(st.readable)
	return n, nil
}

// receiveSmall copies to the end of the last waiting piece, if there is room.
func (st *Stream) receiveSmall(in *bufio.Reader, n int) error {
	data, err := in.Peek(n)
	if err != nil {
		return err
	}
	st.mu.Lock()
	last := len(st.queue) - 1
	if last < 0 || cap(st.queue[last].data)-len(st.queue[last].data) < n {
		st.queue = append(st.queue, newPiece(n, last < 0))
		last++
	}
	st.queue[last].data = append(st.queue[last].data, data...)
	st.heldLocked(n)
	st.mu.Unlock()
	notify(st.readable)
	_, _ = in.Discard(n) // the bytes are buffered
	return nil
}

// endRead records that the peer has sent everything, or has reset the stream.
func (st *Stream) endRead(reset bool) {
	st.mu.Lock()
	st.ended = true
	st.reset = st.reset || reset
	over := st.closed || st.reset
	if over && st.timer != nil {
		st.timer.Stop()
	}
	st.mu.Unlock()
	if over {
		st.session.forget(st.id)
	}
	notify(st.readable)
	notify(st.writable)
}

// grow adds n bytes to the window for sending, as the peer allows.
func (st *Stream) grow(n uint32) error {
	st.mu.Lock()
	fits := n <= math.MaxUint32-st.room
	if fits {
		st.room += n
	}
	st.mu.Unlock()
	notify(st.writable)
	if !fits {
		return broken("a window of more than 4 GiB")
	}
	return nil
}

// Write calls WriteUntil without a stop.
func (st *Stream) Write(p []byte) (int, error) { return st.WriteUntil(p, nil) }

// WriteUntil sends p, and does not keep it. Once stop is closed, it does not wait for the window any more, and returns
// ErrStopped and how many bytes it has sent. Concurrent calls send one after the other.
func (st *Stream) WriteUntil(p []byte, stop <-chan struct{}) (int, error) {
	st.writing.Lock()
	defer st.writing.Unlock()
	total := 0
	for len(p) > 0 {
		room, err := st.Await(1, stop)
		if err != nil {
			return total, err
		}
		n := min(room, len(p))
		if err := st.Send(nil, p[:n]); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// WriteBoth sends head and body as one frame. The window must have room for both.
func (st *Stream) WriteBoth(head, body []byte) error {
	st.writing.Lock()
	defer st.writing.Unlock()
	if _, err := st.Await(len(head)+len(body), nil); err != nil {
		return err
	}
	return st.Send(head, body)
}

// Await waits until at least n bytes may be sent, and returns how many may. Once stop is closed, it returns ErrStopped.
func (st *Stream) Await(n int, stop <-chan struct{}) (room int, err error) {
	for {
		st.mu.Lock()
		gone, room := st.closed || st.reset, int(st.room)
		st.mu.Unlock()
		switch {
		case gone:
			return 0, ErrClosed
		case room >= n:
			return room, nil
		}
		select {
		case <-st.writable:
		case <-st.session.done:
			return 0, st.session.Err()
		case <-stop:
			return 0, ErrStopped
		}
	}
}

// Send sends head and body as one frame, and keeps neither. Await must have returned enough room for both. It waits
// only for the link.
func (st *Stream) Send(head, body []byte) error {
	n := len(head) + len(body)
	st.order.Lock()
	defer st.order.Unlock()
	if !st.use(n) {
		return ErrClosed
	}
	return st.session.send(header{kindData, 0, st.id, uint32(n)}, head, body)
}

// SendBy sends one frame of n bytes. write puts them on the link itself, after the bytes that are passed to it. Await
// must have returned enough room. An error of write ends the session. See [coalesce.Writer.Direct].
func (st *Stream) SendBy(n int, write func(before []byte) error) error {
	st.order.Lock()
	defer st.order.Unlock()
	if !st.use(n) {
		return ErrClosed
	}
	return st.session.sendBy(header{kindData, 0, st.id, uint32(n)}, write)
}

// use takes n bytes from the window. It returns false if the stream has ended.
func (st *Stream) use(n int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || st.reset {
		return false
	}
	st.room -= uint32(n)
	return true
}

// Close tells the peer that everything was sent, and wakes a Write that waits for the window. The peer's bytes can
// still be read, until it closes its end or CloseTimeout has passed. It is idempotent.
func (st *Stream) Close() {
	st.mu.Lock()
	if st.closed || st.reset {
		st.mu.Unlock()
		return
	}
	st.closed = true
	over := st.ended
	if timeout := st.session.cfg.CloseTimeout; !over && timeout > 0 {
		st.timer = time.AfterFunc(timeout, st.giveUp)
	}
	st.mu.Unlock()
	notify(st.writable)
	st.order.Lock()
	_ = st.session.send(header{kindWindow, flagFIN, st.id, 0}, nil, nil) // an error means that the session has ended
	st.order.Unlock()
	if over {
		st.session.forget(st.id)
	}
}

// giveUp resets a stream whose peer does not close its end.
func (st *Stream) giveUp() {
	st.endRead(true)
	_ = st.session.send(header{kindWindow, flagRST, st.id, 0}, nil, nil)
}
