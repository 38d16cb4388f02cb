package relay

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
)

// idleBuffer is the size of the buffer that waits for the manager's next frame. It is small because many streams are
// idle.
const idleBuffer = 512

// frame is a buffer for a whole frame, its header included.
type frame [wire.RelayFrameHeader + wire.MaxRelayFrame]byte

var frames = sync.Pool{New: func() any { return new(frame) }}

func getFrame() *frame {
	f, _ := frames.Get().(*frame)
	return f
}

// payload is the place of the payload in f.
func (f *frame) payload() []byte { return f[wire.RelayFrameHeader:] }

// stream is one stream of the manager.
type stream struct {
	relay *relay
	raw   *yamux.Stream
	in    *bufio.Reader // of raw
	large bool          // a large frame was read, so yamux keeps a large buffer
}

// errClosing refuses a request that comes too late.
var errClosing error = wire.RelayResponse{Code: wire.RelayClosing, Text: "the relay is about to end"}

// accept serves the manager's streams until the session ends.
func (r *relay) accept() {
	for {
		raw, err := r.session.AcceptStream()
		if err != nil {
			r.fail(r.link.reason(err))
			return
		}
		s := &stream{relay: r, raw: raw, in: bufio.NewReaderSize(raw, idleBuffer)}
		if r.count.Add(1) > int64(r.limits.streams) {
			r.count.Add(-1)
			s.answer(wire.RefuseRelay(wire.RelayBusy, "the relay has as many streams as it takes"))
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

// serve reads the request of s and serves it.
func (s *stream) serve() {
	_ = s.raw.SetReadDeadline(time.Now().Add(s.relay.limits.request)) // never fails
	request, err := wire.ReadRelayRequest(s.in)
	_ = s.raw.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, wire.ErrRelayProtocol):
		s.answer(wire.RefuseRelay(wire.RelayInvalid, "%v", err))
		return
	case errors.Is(err, yamux.ErrTimeout):
		s.answer(wire.RefuseRelay(wire.RelayInvalid, "no whole request came within %v", s.relay.limits.request))
		return
	case err != nil:
		return // the manager has closed the stream
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

// answer grants the request if err is nil, and refuses it with err otherwise.
func (s *stream) answer(err error) {
	response := wire.RelayResponse{Code: wire.RelayOK}
	if err != nil && !errors.As(err, &response) {
		response = wire.RefuseRelay(wire.RelayFailed, "%v", err)
	}
	_ = s.write(wire.AppendRelayResponse(nil, response)) // the reader of the stream notices its end
}

// send sends f, whose payload of n bytes is in its place.
func (s *stream) send(f *frame, kind wire.RelayFrame, n int) error {
	wire.PutFrameHeader(f[:], kind, n)
	return s.write(f[:wire.RelayFrameHeader+n])
}

// write sends whole frames. It waits for the window of the stream, until the stream or the session ends. If the manager
// reads nothing at all, the relay ends.
func (s *stream) write(p []byte) error {
	_, err := s.raw.Write(p)
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		s.relay.fail(errStuck)
	}
	return err
}

// next reads a frame's header. At a small frame, after which a stream may be idle, it makes yamux give up its large
// buffer.
func (s *stream) next() (kind wire.RelayFrame, n int, err error) {
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

// wake makes every read of s return, now and later, unless bytes are buffered.
func (s *stream) wake() { _ = s.raw.SetReadDeadline(time.Unix(1, 0)) }

// readFrame waits until a pipe or socket has bytes, and returns at most so many of them in the place of a frame's
// payload. It holds no frame while it waits. wait is the Read of the file's syscall.RawConn. The error is io.EOF at the
// end, os.ErrDeadlineExceeded when the deadline has passed, and os.ErrClosed or another one.
func readFrame(wait func(func(uintptr) bool) error, most int) (f *frame, n int, err error) {
	waitErr := wait(func(fd uintptr) bool {
		f = getFrame()
		n, err = pipe.ReadFD(fd, f.payload()[:most])
		if n > 0 {
			return true
		}
		frames.Put(f)
		if err == nil {
			err = io.EOF
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if waitErr != nil {
		return nil, 0, waitErr
	}
	return f, n, err
}
