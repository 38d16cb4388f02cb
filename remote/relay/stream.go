package relay

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
)

// idleBuffer is the size of the buffer in which a stream waits for the manager's next frame. It is small because many
// streams are idle.
const idleBuffer = 512

// frame is a buffer for a whole frame, its header included.
type frame [wire.RelayFrameHeader + wire.MaxRelayFrame]byte

var frames = sync.Pool{New: func() any { return new(frame) }}

func getFrame() *frame {
	f, _ := frames.Get().(*frame)
	return f
}

// payload returns the part of f for the payload.
func (f *frame) payload() []byte { return f[wire.RelayFrameHeader:] }

// stream is one stream of the manager.
type stream struct {
	relay *relay
	raw   *streams.Stream
	in    *bufio.Reader // of raw, until wake
	// giveUp, once closed, ends a write that waits for the window. It is nil as long as nothing can close it.
	giveUp <-chan struct{}
	wake   func() // makes every read return, now and later, once no bytes are buffered; idempotent
}

// errClosing refuses a request that comes while the relay is closing.
var errClosing error = wire.RelayResponse{Code: wire.RelayClosing, Text: "the relay is closing"}

// accept serves a stream of the manager.
func (r *relay) accept(raw *streams.Stream) {
	stop := make(chan struct{})
	s := &stream{
		relay: r, raw: raw, in: bufio.NewReaderSize(streams.Reader{Stream: raw, Stop: stop}, idleBuffer),
		wake: sync.OnceFunc(func() { close(stop) }),
	}
	if r.count.Add(1) > int64(r.limits.streams) {
		r.count.Add(-1)
		s.answer(wire.RefuseRelay(wire.RelayBusy, "the relay has reached its limit of streams"))
		raw.Close()
		return
	}
	r.streams.Go(func() {
		defer r.count.Add(-1)
		s.serve()
		raw.Close()
	})
}

// serve reads the request of s and carries it out.
func (s *stream) serve() {
	late := time.AfterFunc(s.relay.limits.request, s.wake)
	request, err := wire.ReadRelayRequest(s.in)
	if !late.Stop() {
		err = streams.ErrStopped
	}
	switch {
	case errors.Is(err, wire.ErrRelayProtocol):
		s.answer(wire.RefuseRelay(wire.RelayInvalid, "%v", err))
		return
	case errors.Is(err, streams.ErrStopped):
		s.answer(wire.RefuseRelay(wire.RelayInvalid, "no whole request came within %v", s.relay.limits.request))
		return
	case err != nil:
		return // the manager has closed the stream
	case pause.Done(s.relay.closing):
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

// send sends f. Its payload has n bytes.
func (s *stream) send(f *frame, kind wire.RelayFrame, n int) error {
	wire.PutFrameHeader(f[:], kind, n)
	return s.write(f[:wire.RelayFrameHeader+n])
}

// write sends whole frames. It waits for the window of the stream until giveUp, or until the stream or the session
// ends.
func (s *stream) write(p []byte) error {
	_, err := s.raw.WriteUntil(p, s.giveUp)
	return err
}

// next reads a frame's header.
func (s *stream) next() (kind wire.RelayFrame, n int, err error) { return wire.ReadFrameHeader(s.in) }

// readFrame waits until a pipe or socket has bytes, and returns a frame with at most most of them as payload. It holds
// no frame while it waits. wait is the Read of the file's syscall.RawConn. The error is io.EOF at the end,
// os.ErrDeadlineExceeded when the deadline has passed, os.ErrClosed, or a system error.
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
