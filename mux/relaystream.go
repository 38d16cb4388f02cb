package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
)

// frames holds buffers for a whole frame, its header included.
var frames = sync.Pool{New: func() any { return new([wire.RelayFrameHeader + wire.MaxRelayFrame]byte) }}

// DialUnix connects to a unix socket of one of the user's builds: <tmp>/gitlab-runner-steps/<build id>/<name>
// (docs/protocol.md); a [*RefusedError] says that it is none, or is not there. ctx bounds the wait for the
// answer. The caller closes the Stream.
func (r *Relay) DialUnix(ctx context.Context, path string) (*Stream, error) {
	return r.dial(ctx, "dial unix "+path, wire.RelayConnect{Path: path})
}

// DialReady is DialUnix that waits, at most until ctx ends, until the process that was started with this
// path as its Command.Ready says that it listens, be that before this call or after. A [*RefusedError]
// with RefusedNotReady says that it has ended instead.
func (r *Relay) DialReady(ctx context.Context, path string) (*Stream, error) {
	wait := time.Duration(math.MaxInt32) * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(time.Until(deadline), time.Millisecond)
	}
	return r.dial(ctx, "dial unix "+path, wire.RelayConnect{Path: path, Wait: wait})
}

func (r *Relay) dial(ctx context.Context, op string, request wire.RelayConnect) (*Stream, error) {
	message, err := wire.AppendRelayConnect(nil, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	stream, err := r.request(ctx, op, message)
	if err != nil {
		return nil, err
	}
	return &Stream{stream}, nil
}

// relayStream is a Stream by a relay, and the part of a Process by a relay that is not particular to
// processes.
type relayStream struct {
	relay *Relay
	raw   *yamux.Stream

	closed    chan struct{} // closed by Close
	closeOnce sync.Once

	hangUpOnce sync.Once

	left int  // of the payload of the frame being read; owned by Read, like end
	end  bool // the other end is done

	closeWrite sync.Once
}

// pendingRequest is a request on its way, which its caller may give up.
type pendingRequest struct {
	mu     sync.Mutex // guards the following
	raw    *yamux.Stream
	gaveUp bool
}

// opened reports whether the request is still wanted.
func (p *pendingRequest) opened(raw *yamux.Stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.raw = raw
	return !p.gaveUp
}

// giveUp ends the wait for the answer.
func (p *pendingRequest) giveUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gaveUp = true
	if p.raw != nil {
		_ = p.raw.SetReadDeadline(time.Unix(0, 1)) // never fails
	}
}

// request opens a stream with message as its request, and waits for the answer.
func (r *Relay) request(ctx context.Context, op string, message []byte) (*relayStream, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if err := r.alive(op); err != nil {
		return nil, err
	}
	if err := r.begin(op); err != nil {
		return nil, err
	}
	type answer struct {
		stream *relayStream
		err    error
	}
	// yamux has no context for this, hence the goroutine.
	answered := make(chan answer, 1)
	pending := &pendingRequest{}
	taken := make(chan bool, 1) // whether the caller is there to take the answer
	spawned := r.conn.spawn(func() {
		start := time.Now()
		stream, err := r.ask(op, message, pending)
		r.conn.trace.channelOpen(RelayChannel, time.Since(start), err)
		answered <- answer{stream, err}
		switch {
		case err != nil:
			r.finish()
		case !<-taken:
			_ = stream.Close() // always nil
		}
	})
	if !spawned {
		r.finish()
		return nil, r.ended(op)
	}
	select {
	case a := <-answered:
		taken <- true
		return a.stream, a.err
	case <-ctx.Done():
		pending.giveUp()
		taken <- false
		return nil, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

// ask does the work of request.
func (r *Relay) ask(op string, message []byte, pending *pendingRequest) (*relayStream, error) {
	raw, err := r.session.OpenStream()
	if err != nil {
		return nil, r.streamError(op, err)
	}
	fail := func(err error) (*relayStream, error) {
		_ = raw.Close() // an error means that the session has ended
		return nil, err
	}
	if !pending.opened(raw) {
		return fail(context.Canceled) // nobody hears it
	}
	if _, err := raw.Write(message); err != nil {
		return fail(r.streamError(op, err))
	}
	response, err := wire.ReadRelayResponse(raw)
	if err != nil {
		return fail(r.streamError(op, err))
	}
	if response.Code != wire.RelayOK {
		return fail(refusal(op, response))
	}
	return &relayStream{relay: r, raw: raw, closed: make(chan struct{})}, nil
}

// refusal returns a response as an error.
func refusal(op string, response wire.RelayResponse) error {
	reason, ok := map[wire.RelayCode]RefusalReason{
		wire.RelayInvalid:   RefusedInvalid,
		wire.RelayForbidden: RefusedForbidden,
		wire.RelayNotFound:  RefusedNotFound,
		wire.RelayNotReady:  RefusedNotReady,
		wire.RelayBusy:      RefusedBusy,
		wire.RelayClosing:   RefusedClosing,
	}[response.Code]
	if !ok {
		reason = RefusedFailed
	}
	return &RefusedError{Op: op, Reason: reason, Text: string(clip([]byte(response.Text), tail.MaxBytes))}
}

// streamError says what an error of yamux means here. It says io.EOF when the peer has closed the stream,
// but also when the session has ended. A session whose write timed out, or that the peer has told to go
// away, is no more use and ends.
func (r *Relay) streamError(op string, err error) error {
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) || errors.Is(err, yamux.ErrRemoteGoAway) || errors.Is(err, yamux.ErrStreamsExhausted) {
		_ = r.link.Close() // always nil; the rest follows from that
		<-r.session.CloseChan()
	}
	if lost := r.alive(op); lost != nil {
		return lost
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s: relay: %w", op, err)
}

// next reads frame headers until one is a FrameData that has something in it, of which left tells, or the
// stream ends. other is told of other frames.
func (s *relayStream) next(other func(kind wire.RelayFrame, n int) error) error {
	for s.left == 0 {
		if s.end {
			return io.EOF
		}
		kind, n, err := wire.ReadFrameHeader(s.raw)
		switch {
		case err != nil:
			return err
		case kind == wire.FrameData:
			s.left = n
		default:
			if err := other(kind, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Read implements duplex for a socket.
func (s *relayStream) Read(p []byte) (int, error) {
	if s.isClosed() {
		return 0, s.error("read", io.EOF)
	}
	err := s.next(func(kind wire.RelayFrame, n int) error {
		if kind != wire.FrameEnd || n != 0 {
			return fmt.Errorf("%w: a frame %q of %d bytes from a socket", wire.ErrRelayProtocol, kind, n)
		}
		s.end = true
		return nil
	})
	n := 0
	if err == nil {
		n, err = s.raw.Read(p[:min(len(p), s.left)])
		s.left -= n
	}
	if err != nil && !s.end {
		err = s.error("read", err)
	}
	return n, err
}

// error is Relay.streamError after Close, too.
func (s *relayStream) error(op string, err error) error {
	if s.isClosed() {
		return fmt.Errorf("%s: %w", op, io.ErrClosedPipe)
	}
	if errors.Is(err, yamux.ErrStreamClosed) || errors.Is(err, yamux.ErrConnectionReset) {
		err = io.ErrClosedPipe
	}
	return s.relay.streamError(op, err)
}

func (s *relayStream) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Write implements duplex for a socket.
func (s *relayStream) Write(p []byte) (int, error) {
	frame := frames.Get().(*[wire.RelayFrameHeader + wire.MaxRelayFrame]byte)
	defer frames.Put(frame)
	total := 0
	for len(p) > 0 {
		n := copy(frame[wire.RelayFrameHeader:], p)
		if err := s.send(frame, wire.FrameData, n); err != nil {
			return total, s.error("write", err)
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// send sends a frame whose payload of n bytes is in its place.
func (s *relayStream) send(frame *[wire.RelayFrameHeader + wire.MaxRelayFrame]byte, kind wire.RelayFrame, n int) error {
	wire.PutFrameHeader(frame[:], kind, n)
	_, err := s.raw.Write(frame[:wire.RelayFrameHeader+n])
	return err
}

// CloseWrite implements duplex.
func (s *relayStream) CloseWrite() error {
	var err error
	s.closeWrite.Do(func() {
		if _, err = s.raw.Write(wire.AppendFrame(nil, wire.FrameEnd, nil)); err != nil {
			err = s.error("close write", err)
		}
	})
	return err
}

// Close implements duplex. The end of a stream without FrameEnd tells the relay to close what is at its
// end.
func (s *relayStream) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		_ = s.raw.SetReadDeadline(time.Unix(0, 1)) // never fails
		s.hangUp()
	})
	return nil
}

// hangUp sends the end of the stream. A write to a frozen peer may hold that up; see channel.Close.
func (s *relayStream) hangUp() {
	s.hangUpOnce.Do(func() {
		sent := make(chan struct{})
		if s.relay.conn.spawn(func() {
			defer close(sent)
			_ = s.raw.Close() // an error means that the session has ended
		}) {
			s.relay.conn.settle(sent)
		}
		s.relay.finish()
		s.relay.conn.trace.channelClose(RelayChannel)
	})
}
