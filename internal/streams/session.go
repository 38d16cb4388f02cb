package streams

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/wire"
)

// The errors of a Stream. After the end of the session it is that of [Session.Err].
var (
	// ErrStopped says that the call was stopped.
	ErrStopped = errors.New("stopped")
	// ErrClosed says that the stream was closed here, or reset by the peer.
	ErrClosed = errors.New("the stream is closed")
	// errEnded is the error of a session that was closed here.
	errEnded = errors.New("the session is closed")
)

const (
	headerSize = 12
	// initialWindow is a stream's window in each direction before the first update.
	initialWindow = 256 << 10
	// maxPings is how many pings a peer may send at once. It gains another one in each pingInterval.
	maxPings     = 16
	pingInterval = time.Second
)

// The kinds of frames.
const (
	kindData = iota
	kindWindow
	kindPing
	kindGoAway
)

// The flags.
const (
	flagSYN = 1 << iota // opens a stream; asks for an answer to a ping
	flagACK
	flagFIN
	flagRST
)

// header is that of a frame.
type header struct {
	kind  byte
	flags uint16
	id    uint32 // of the stream
	n     uint32 // length of the data, growth of the window, or number of a ping
}

// Config describes a link. In, Out and Window are required.
type Config struct {
	// In has the bytes that the peer sends. Its end ends the session.
	In io.Reader
	// Out takes the bytes for the peer. Its owner runs it; the end of the session closes it.
	Out *coalesce.Writer
	// Window is how many bytes of a stream may wait to be read, at least 256 KiB.
	Window uint32
	// Accept is called with each stream that the peer opens, before its next frame is received. If nil, this end opens
	// the streams, and a peer that opens one breaks the protocol.
	Accept func(*Stream)
	// CloseTimeout bounds how long a closed stream waits for its other end. If zero, as long as the session lives.
	CloseTimeout time.Duration
}

// Session is one end of a link. It is safe for concurrent use.
type Session struct {
	cfg   Config
	in    *bufio.Reader // owned by Run, like the next two
	pings int           // that the peer may still send
	since time.Time

	sending sync.Mutex // held while a frame is handed to Out; guards head
	head    [headerSize]byte

	done chan struct{} // closed once err is set

	mu      sync.Mutex // guards the following
	err     error
	streams map[uint32]*Stream
	nextID  uint32
}

// New returns a Session. The caller runs Run.
func New(cfg Config) *Session {
	return &Session{
		cfg: cfg, in: bufio.NewReaderSize(cfg.In, ReadAhead), pings: maxPings,
		done: make(chan struct{}), streams: make(map[uint32]*Stream), nextID: 1,
	}
}

// Run receives until the session ends, and returns the reason, as Err does. After Close it returns when the current
// Read of In returns.
func (s *Session) Run() error {
	err := s.receive()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the link ended, which is not the end of a stream
	}
	s.end(err)
	return s.Err()
}

// Done returns a channel that is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns nil while the session lives, and then the reason of its end. The reason is io.ErrUnexpectedEOF if In has
// ended. The error for a peer that breaks the protocol wraps wire.ErrRelayProtocol.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session and wakes all calls that wait. It does not wait for Run. It is idempotent.
func (s *Session) Close() { s.end(errEnded) }

// end ends the session. Only the first call's reason counts.
func (s *Session) end(err error) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = err
		close(s.done)
	}
	s.mu.Unlock()
	if first {
		_ = s.cfg.Out.Close() // always nil
	}
}

// Open opens a stream. It does not wait for the peer.
func (s *Session) Open() (*Stream, error) {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	if s.nextID > math.MaxUint32-2 {
		s.mu.Unlock()
		s.end(errors.New("the session has used all stream numbers"))
		return nil, s.Err()
	}
	st := newStream(s, s.nextID)
	s.nextID += 2
	s.streams[st.id] = st
	s.mu.Unlock()
	return st, s.send(header{kindWindow, flagSYN, st.id, s.cfg.Window - initialWindow}, nil, nil)
}

// Ping asks the peer for an answer, and does not wait for it: any byte from the peer is a sign of life.
func (s *Session) Ping() { _ = s.send(header{kind: kindPing, flags: flagSYN}, nil, nil) }

// send hands a frame to Out, with head and body as its data. It waits while Out is full. An error ends the session.
func (s *Session) send(h header, head, body []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.putHeader(h)
	return s.wrote(s.cfg.Out.WriteAll(s.head[:], head, body))
}

// sendBy sends a frame whose data write puts on the link, after the bytes that are passed to it; see Stream.SendBy.
func (s *Session) sendBy(h header, write func(before []byte) error) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.putHeader(h)
	return s.wrote(s.cfg.Out.Direct(func(before []byte) error { return write(append(before, s.head[:]...)) }))
}

// putHeader writes h to head. The caller holds sending.
func (s *Session) putHeader(h header) {
	s.head[1] = h.kind // the version before it is 0
	binary.BigEndian.PutUint16(s.head[2:], h.flags)
	binary.BigEndian.PutUint32(s.head[4:], h.id)
	binary.BigEndian.PutUint32(s.head[8:], h.n)
}

// wrote ends the session if a frame could not be sent. It returns the reason.
func (s *Session) wrote(err error) error {
	if err != nil {
		s.end(fmt.Errorf("write: %w", err))
		return s.Err()
	}
	return nil
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %w", wire.ErrRelayProtocol, fmt.Errorf(format, args...))
}

// receive takes frames until In ends or the peer breaks the protocol.
func (s *Session) receive() error {
	for {
		head, err := s.in.Peek(headerSize)
		switch {
		case err != nil:
			return err
		case head[0] != 0:
			return broken("what came from it makes no sense: a frame of version %d", head[0])
		}
		h := header{
			kind: head[1], flags: binary.BigEndian.Uint16(head[2:]),
			id: binary.BigEndian.Uint32(head[4:]), n: binary.BigEndian.Uint32(head[8:]),
		}
		_, _ = s.in.Discard(headerSize) // the header is buffered
		switch h.kind {
		case kindData, kindWindow:
			err = s.takeFrame(h)
		case kindPing:
			err = s.takePing(h)
		case kindGoAway:
			err = errors.New("the peer accepts no more streams")
		default:
			err = broken("what came from it makes no sense: a frame of kind %d", h.kind)
		}
		if err != nil {
			return err
		}
	}
}

// takePing answers a ping.
func (s *Session) takePing(h header) error {
	if h.flags&flagSYN == 0 {
		return nil // an answer
	}
	now := time.Now()
	if more := int(now.Sub(s.since) / pingInterval); more > 0 {
		s.pings, s.since = min(s.pings+more, maxPings), now
	}
	if s.pings == 0 {
		return broken("the peer pings more than once a second")
	}
	s.pings--
	return s.send(header{kindPing, flagACK, 0, h.n}, nil, nil)
}

// takeFrame takes a frame of a stream. It drops a frame of an unknown stream.
func (s *Session) takeFrame(h header) error {
	s.mu.Lock()
	st := s.streams[h.id]
	s.mu.Unlock()
	if h.flags&flagSYN != 0 {
		var err error
		if st, err = s.accept(st, h.id); err != nil {
			return err
		}
	}
	switch {
	case h.kind == kindWindow && st != nil:
		if err := st.grow(h.n); err != nil {
			return err
		}
	case h.kind == kindData && st != nil:
		if err := st.receive(s.in, h.n); err != nil {
			return err
		}
	case h.kind == kindData:
		if err := discard(s.in, h.n); err != nil {
			return err
		}
	}
	if st != nil && h.flags&(flagFIN|flagRST) != 0 {
		st.endRead(h.flags&flagRST != 0)
	}
	return nil
}

// accept accepts a stream that the peer opens. old is a stream with the same number, or nil.
func (s *Session) accept(old *Stream, id uint32) (*Stream, error) {
	if s.cfg.Accept == nil || old != nil || id%2 == 0 {
		return nil, broken("the peer opened a stream")
	}
	st := newStream(s, id)
	s.mu.Lock()
	s.streams[id] = st
	s.mu.Unlock()
	if err := s.send(header{kindWindow, flagACK, id, s.cfg.Window - initialWindow}, nil, nil); err != nil {
		return nil, err
	}
	s.cfg.Accept(st)
	return st, nil
}

// forget drops a stream that has ended in both directions.
func (s *Session) forget(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, id)
}
