package remote

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// idleBuffer is the size of the buffer that waits for the manager's next frame, small because idle streams
// are many.
const idleBuffer = 512

// frame is a buffer for a whole frame, its header included.
type frame [wire.RelayFrameHeader + wire.MaxRelayFrame]byte

var frames = sync.Pool{New: func() any { return new(frame) }}

func getFrame() *frame {
	f, _ := frames.Get().(*frame)
	return f
}

// payload is where the payload of f has its place.
func (f *frame) payload() []byte { return f[wire.RelayFrameHeader:] }

// relayStream is one stream of the manager.
type relayStream struct {
	relay *relay
	raw   *yamux.Stream
	in    *bufio.Reader // of raw
	large bool          // a large frame was read, which yamux keeps a buffer for
}

// refusal is why a request is not granted.
type refusal struct {
	code wire.RelayCode
	text string
}

func (e *refusal) Error() string { return e.text }

// errClosing refuses what comes too late.
var errClosing = &refusal{wire.RelayClosing, "the relay is about to end"}

// accept serves the manager's streams until the session ends.
func (r *relay) accept() {
	for {
		raw, err := r.session.AcceptStream()
		if err != nil {
			r.fail(r.link.reason(err))
			return
		}
		s := &relayStream{relay: r, raw: raw, in: bufio.NewReaderSize(raw, idleBuffer)}
		if r.count.Add(1) > int64(r.limits.streams) {
			r.count.Add(-1)
			s.answer(&refusal{wire.RelayBusy, "the relay has as many streams as it takes"})
			_ = raw.Close() // an error means that the session has ended
			continue
		}
		r.streams.Go(func() {
			defer r.count.Add(-1)
			s.serve()
			_ = raw.Close()
		})
	}
}

// serve reads the request of s and does it.
func (s *relayStream) serve() {
	_ = s.raw.SetReadDeadline(time.Now().Add(s.relay.limits.request)) // never fails
	request, err := wire.ReadRelayRequest(s.in)
	_ = s.raw.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, wire.ErrRelayProtocol):
		s.answer(&refusal{wire.RelayInvalid, err.Error()})
		return
	case errors.Is(err, yamux.ErrTimeout):
		s.answer(&refusal{wire.RelayInvalid, "no whole request came within " + s.relay.limits.request.String()})
		return
	case err != nil:
		return // the manager has changed its mind
	case isClosed(s.relay.closing):
		s.answer(errClosing)
		return
	}
	switch request := request.(type) {
	case *wire.RelayStart:
		s.start(request)
	case *wire.RelayConnect:
		s.connect(request)
	}
}

// answer grants the request if err is nil, else says why not.
func (s *relayStream) answer(err error) {
	response := wire.RelayResponse{Code: wire.RelayOK}
	if err != nil {
		response = wire.RelayResponse{Code: wire.RelayFailed, Text: err.Error()}
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			response.Code = refused.code
		}
	}
	_ = s.write(wire.AppendRelayResponse(nil, response)) // whoever reads finds that the stream has ended
}

// send sends a frame whose payload of n bytes is in its place.
func (s *relayStream) send(f *frame, kind wire.RelayFrame, n int) error {
	wire.PutFrameHeader(f[:], kind, n)
	return s.write(f[:wire.RelayFrameHeader+n])
}

// write sends whole frames. It waits for the window of the stream, until that or the session ends. A manager
// that takes nothing at all is none.
func (s *relayStream) write(p []byte) error {
	_, err := s.raw.Write(p)
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		s.relay.fail(errStuck)
	}
	return err
}

// next reads a frame's header. With a small frame, after which a stream may be idle, yamux gives up its large
// buffer.
func (s *relayStream) next() (kind wire.RelayFrame, n int, err error) {
	kind, n, err = wire.ReadFrameHeader(s.in)
	switch {
	case n > idleBuffer:
		s.large = true
	case s.large && s.in.Buffered() <= n:
		s.raw.Shrink()
		s.large = false
	}
	return kind, n, err
}

// wake makes who reads from s return, now and from now on, once there is nothing to be read at once.
func (s *relayStream) wake() { _ = s.raw.SetReadDeadline(time.Unix(1, 0)) }

// source reads pipes and sockets into frames, without holding one while nothing comes.
type source struct {
	raw  syscall.RawConn
	most int // how much to read at once
	got  *frame
	n    int
	err  error
}

// next waits for bytes, at most so many, and returns them in the place of a frame's payload. The error is io.EOF
// at the end, os.ErrDeadlineExceeded when the deadline has passed, and os.ErrClosed or another one.
func (s *source) next(most int) (*frame, int, error) {
	s.most = most
	if err := s.raw.Read(s.read); err != nil {
		return nil, 0, err
	}
	return s.result()
}

// now is next that does not wait: the error is os.ErrDeadlineExceeded if nothing is there.
func (s *source) now(most int) (*frame, int, error) {
	s.most, s.n, s.err = most, 0, os.ErrDeadlineExceeded
	if err := s.raw.Control(func(fd uintptr) { s.read(fd) }); err != nil {
		return nil, 0, err
	}
	return s.result()
}

func (s *source) result() (*frame, int, error) {
	got := s.got
	s.got = nil
	return got, s.n, s.err
}

// read reports whether there is a result.
func (s *source) read(fd uintptr) bool {
	f := getFrame()
	n, err := rawIO(unix.SYS_READ, fd, f.payload()[:s.most])
	switch {
	case n > 0:
		s.got, s.n, s.err = f, n, nil
		return true
	case errors.Is(err, unix.EAGAIN):
		frames.Put(f)
		return false
	case err == nil:
		err = io.EOF
	}
	frames.Put(f)
	s.n, s.err = 0, err
	return true
}
