package relay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// stream is a yamux stream whose request the relay has granted.
type stream struct {
	relay      *Relay
	raw        *streams.Stream
	hangUpOnce sync.Once
}

// send sends part of p, at most one frame, and returns how many bytes. It waits for the link only in Reserve, which
// can be stopped. The room must not stay reserved while the stream waits for its window: the other streams need it.
func (s *stream) send(p []byte, stop <-chan struct{}) (int, error) {
	room, err := s.raw.Await(1, stop)
	if err != nil {
		return 0, err
	}
	n := min(len(p), room, wire.MaxRelayFrame)
	out := s.relay.link.out
	if !out.Reserve(n, stop) {
		return 0, channel.ErrStopped
	}
	defer out.Release(n)
	return n, s.raw.Send(nil, p[:n])
}

// hangUp sends the end of the stream. Idempotent.
func (s *stream) hangUp() {
	s.hangUpOnce.Do(func() {
		s.raw.Close()
		s.relay.finish()
		s.relay.cfg.Closed()
	})
}

// failure turns an error of the stream into the error of op.
func (s *stream) failure(op string, err error) error {
	switch {
	case errors.Is(err, channel.ErrStopped):
		return err
	case errors.Is(err, streams.ErrStopped):
		return cmp.Or(s.relay.alive(op), channel.ErrStopped)
	case errors.Is(err, streams.ErrClosed):
		err = io.ErrClosedPipe
	}
	return s.relay.streamError(op, err)
}

// socket is the [channel.Transport] of a connection to a unix socket.
type socket struct {
	*stream

	// Owned by Read:
	head [wire.RelayFrameHeader]byte
	have int  // bytes of head that have been read
	left int  // bytes of the frame's payload that remain to be read
	end  bool // the other end has finished writing

	sent [wire.RelayFrameHeader]byte // the header of the frame being sent; owned by Write and CloseWrite
}

// Read implements [channel.Transport].
func (s *socket) Read(p []byte, stop <-chan struct{}) (int, error) {
	n, err := 0, s.next(stop)
	if err == nil {
		n, err = s.raw.ReadUntil(p[:min(len(p), s.left)], stop)
		s.left -= n
	}
	if err != nil && !s.end {
		err = s.failure("read", err)
	}
	return n, err
}

// next reads frame headers until a frame has data, and sets left to its size, or until the stream ends.
func (s *socket) next(stop <-chan struct{}) error {
	for s.left == 0 {
		if s.end {
			return io.EOF
		}
		for s.have < len(s.head) {
			n, err := s.raw.ReadUntil(s.head[s.have:], stop)
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
	total := 0
	for len(p) > 0 {
		n, err := s.sendFrame(wire.FrameData, p, stop)
		if err != nil {
			return total, s.failure("write", err)
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// sendFrame sends a frame with as much of p as fits. stop never cuts a frame in two. It waits for the window and for
// the link, and returns how many bytes it has sent.
func (s *socket) sendFrame(kind wire.RelayFrame, p []byte, stop <-chan struct{}) (int, error) {
	const header = wire.RelayFrameHeader
	room, err := s.raw.Await(header+min(len(p), 1), stop)
	if err != nil {
		return 0, err
	}
	n := min(len(p), room-header, wire.MaxRelayFrame)
	out := s.relay.link.out
	if !out.Reserve(header+n, stop) {
		return 0, channel.ErrStopped
	}
	defer out.Release(header + n)
	wire.PutFrameHeader(s.sent[:], kind, n)
	return n, s.raw.Send(s.sent[:], p[:n])
}

// CloseWrite implements [channel.Transport].
func (s *socket) CloseWrite(stop <-chan struct{}) error {
	if _, err := s.sendFrame(wire.FrameEnd, nil, stop); err != nil {
		return s.failure("close write", err)
	}
	return nil
}

// Close implements [channel.Transport]. The end of the stream without FrameEnd tells the relay to close the socket.
func (s *socket) Close() { s.hangUp() }
