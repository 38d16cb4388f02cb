package relay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// frame has room for a whole frame, its header included.
type frame [wire.RelayFrameHeader + wire.MaxRelayFrame]byte

var frames = sync.Pool{New: func() any { return new(frame) }}

// stream is a yamux stream whose request the relay has granted.
type stream struct {
	relay      *Relay
	raw        *yamux.Stream
	hangUpOnce sync.Once

	mu         sync.Mutex // guards the following
	writeUntil time.Time  // the deadline of awaitWindow
	awaiting   bool       // awaitWindow is under way
}

func newStream(r *Relay, raw *yamux.Stream) *stream {
	s := &stream{relay: r, raw: raw}
	_ = raw.SetWriteDeadline(longAgo) // never fails; see send
	return s
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(0, 1)

// send sends p, at most a frame, and returns how much of it. yamux cannot wake a Write that waits for the link, so
// all waiting for the link is done here, in Reserve. The room must not stay reserved while the stream waits for its
// window: siblings need it. So yamux's Write has a deadline that has passed, with which it sends as much as the window
// has room for and waits for no more.
func (s *stream) send(p []byte, stop <-chan struct{}) (int, error) {
	out := s.relay.link.out
	if !out.Reserve(len(p), stop) {
		return 0, channel.ErrStopped
	}
	n, err := s.raw.Write(p)
	out.Release(len(p))
	if !errors.Is(err, yamux.ErrTimeout) {
		return n, err
	}
	more, err := s.awaitWindow(p[n : n+1])
	if errors.Is(err, yamux.ErrTimeout) {
		err = channel.ErrStopped
	}
	return n + more, err
}

// awaitWindow waits until the stream's window has room, by sending a single byte.
func (s *stream) awaitWindow(one []byte) (int, error) {
	s.mu.Lock()
	s.awaiting = true
	_ = s.raw.SetWriteDeadline(s.writeUntil)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.awaiting = false
		_ = s.raw.SetWriteDeadline(longAgo)
		s.mu.Unlock()
	}()
	return s.raw.Write(one)
}

// SetWriteDeadline sets the deadline of awaitWindow. See [channel.Transport].
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeUntil = t
	if s.awaiting {
		return s.raw.SetWriteDeadline(t)
	}
	return nil
}

// hangUp sends the end of the stream. Idempotent.
func (s *stream) hangUp() {
	s.hangUpOnce.Do(func() {
		_ = s.raw.Close() // an error means that the session has ended
		s.relay.finish()
		s.relay.cfg.Closed()
	})
}

// failure returns the error for op that an error of the stream stands for.
func (s *stream) failure(op string, err error) error {
	switch {
	case errors.Is(err, channel.ErrStopped):
		return err
	case errors.Is(err, yamux.ErrTimeout):
		return cmp.Or(s.relay.alive(op), channel.ErrStopped)
	case errors.Is(err, yamux.ErrStreamClosed), errors.Is(err, yamux.ErrConnectionReset):
		err = io.ErrClosedPipe
	}
	return s.relay.streamError(op, err)
}

// socket is the [channel.Transport] of a connection to a unix socket.
type socket struct {
	*stream

	// Owned by Read:
	head [wire.RelayFrameHeader]byte
	have int  // bytes of head
	left int  // bytes of the frame's payload that are still to be read
	end  bool // the other end is done

	// Owned by Write and CloseWrite:
	frame  *frame // the buffer of unsent; may be nil
	unsent []byte // the rest of a frame, which must be sent before all else
	ended  bool   // FrameEnd was sent, or is unsent
}

// Read implements [channel.Transport]. yamux's own deadline stops it.
func (s *socket) Read(p []byte, _ <-chan struct{}) (int, error) {
	n, err := 0, s.next()
	if err == nil {
		n, err = s.raw.Read(p[:min(len(p), s.left)])
		s.left -= n
	}
	if err != nil && !s.end {
		err = s.failure("read", err)
	}
	return n, err
}

// SetReadDeadline sets yamux's deadline.
func (s *socket) SetReadDeadline(t time.Time) error { return s.raw.SetReadDeadline(t) }

// next reads frame headers until a frame has data, of which left tells, or the stream ends.
func (s *socket) next() error {
	for s.left == 0 {
		if s.end {
			return io.EOF
		}
		for s.have < len(s.head) {
			n, err := s.raw.Read(s.head[s.have:])
			s.have += n
			if err != nil {
				return err
			}
		}
		s.have = 0
		kind, n, err := wire.ReadFrameHeader(bytes.NewReader(s.head[:]))
		switch {
		case err != nil:
			return err
		case kind == wire.FrameData:
			s.left = n
		case kind == wire.FrameEnd && n == 0:
			s.end = true
		default:
			return fmt.Errorf("%w: a frame %q of %d bytes from a socket", wire.ErrRelayProtocol, kind, n)
		}
	}
	return nil
}

// Write implements [channel.Transport].
func (s *socket) Write(p []byte, stop <-chan struct{}) (int, error) {
	if err := s.flush(stop); err != nil {
		return 0, err
	}
	total := 0
	for len(p) > 0 {
		s.frame = frames.Get().(*frame)
		n := copy(s.frame[wire.RelayFrameHeader:], p)
		wire.PutFrameHeader(s.frame[:], wire.FrameData, n)
		s.unsent = s.frame[:wire.RelayFrameHeader+n]
		if err := s.flush(stop); err != nil {
			if len(s.unsent) < wire.RelayFrameHeader+n {
				return total + n, err // a frame that has begun is sent to its end
			}
			s.sent()
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// flush sends the rest of a frame.
func (s *socket) flush(stop <-chan struct{}) error {
	for len(s.unsent) > 0 {
		n, err := s.send(s.unsent, stop)
		s.unsent = s.unsent[n:]
		if err != nil {
			return s.failure("write", err)
		}
	}
	s.sent()
	return nil
}

// sent forgets the frame.
func (s *socket) sent() {
	s.unsent = nil
	if s.frame != nil {
		frames.Put(s.frame)
		s.frame = nil
	}
}

// CloseWrite implements [channel.Transport].
func (s *socket) CloseWrite(stop <-chan struct{}) error {
	if err := s.flush(stop); err != nil {
		return err
	}
	if !s.ended {
		s.ended = true
		s.unsent = wire.AppendFrame(nil, wire.FrameEnd, nil)
	}
	return s.flush(stop)
}

// Close implements [channel.Transport]. The end of the stream without FrameEnd tells the relay to close the socket.
func (s *socket) Close() {
	s.hangUp()
	s.relay.remove(s.raw)
}
