package channel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

// ErrStopped is the error of a Transport's call that was stopped. A Stream replaces it by its deadline's error or its
// closed error.
var ErrStopped = errors.New("stopped")

// Transport moves the bytes of a Stream by one route. At most one Read runs at a time, and at most one Write or
// CloseWrite. Close may be called at any time.
//
// Once stop is closed, a waiting call returns ErrStopped and the number of bytes it has taken. The next call
// continues from there: bytes that Write has counted are sent before any later ones, or are lost with Close.
type Transport interface {
	Read(p []byte, stop <-chan struct{}) (int, error)
	Write(p []byte, stop <-chan struct{}) (int, error)
	// CloseWrite tells the other end that no more bytes come. It is repeated until it returns nil.
	CloseWrite(stop <-chan struct{}) error
	// Close ends the transport. It does not wait for the peer, and is called once.
	Close()
}

// Stream is a duplex byte stream to something on the VM, and a net.Conn. It is safe for concurrent use.
type Stream struct {
	transport     Transport
	local, remote Addr
	closed        chan struct{}
	closeOnce     sync.Once

	reading   sync.Mutex // held by Read
	readUntil deadline

	writing    sync.Mutex // held by Write and CloseWrite; guards the following
	noMore     bool       // CloseWrite has succeeded
	writeUntil deadline
}

var _ net.Conn = (*Stream)(nil)

// Addr is the address of one end of a Stream.
type Addr struct {
	Net  string // "tcp", "unix", or "exec" for a process
	Text string // host:port, path, or command line
}

// Network implements net.Addr.
func (a Addr) Network() string { return a.Net }

// String implements net.Addr.
func (a Addr) String() string { return a.Text }

// NewStream returns a Stream that owns t. local is this end's address, remote the other's.
func NewStream(t Transport, local, remote Addr) *Stream {
	s := &Stream{transport: t, local: local, remote: remote, closed: make(chan struct{})}
	s.readUntil.passed, s.writeUntil.passed = make(chan struct{}), make(chan struct{})
	return s
}

// Read reads the bytes that the other end sent. It returns io.EOF only when the other end has finished writing. If
// the connection was lost the error is a *mux.ConnError, if the relay ended a *relay.Error. After Close the error is
// both net.ErrClosed and io.ErrClosedPipe; after the deadline, os.ErrDeadlineExceeded.
func (s *Stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	stop, err := s.begin("read", &s.readUntil)
	if err != nil {
		return 0, err
	}
	n, err := s.transport.Read(p, stop)
	return n, s.failure("read", err)
}

// Write sends p. It returns when all of p is on its way, and waits for the window that the other end grants. If the
// other end has stopped reading, the error is io.ErrClosedPipe; other errors are those of Read, without io.EOF. The
// bytes that Write counts are on their way even if its deadline passed.
func (s *Stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	stop, err := s.begin("write", &s.writeUntil)
	if err != nil {
		return 0, err
	}
	if s.noMore {
		return 0, fmt.Errorf("write after CloseWrite: %w", io.ErrClosedPipe)
	}
	n, err := s.transport.Write(p, stop)
	return n, s.failure("write", err)
}

// CloseWrite tells the other end that no more bytes come, after all that Write has sent. The Stream can still be
// read. CloseWrite waits for a Write that is under way. Idempotent.
func (s *Stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.noMore {
		return nil
	}
	stop, err := s.begin("close write", &s.writeUntil)
	if err != nil {
		return err
	}
	err = s.failure("close write", s.transport.CloseWrite(stop))
	s.noMore = err == nil
	return err
}

// Close closes the stream and wakes calls that wait on it. It does not wait for the peer. Idempotent; it returns
// nil.
func (s *Stream) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		_ = s.SetDeadline(past) // the error says that the stream is closed
		s.transport.Close()
	})
	return nil
}

// begin returns the channel that stops a call at this deadline, or an error if the call must not begin.
func (s *Stream) begin(op string, until *deadline) (stop <-chan struct{}, err error) {
	stop = until.channel()
	if pause.Done(stop) {
		return nil, s.failure(op, ErrStopped)
	}
	return stop, nil
}

// failure turns an error of the transport into the Stream's own error.
func (s *Stream) failure(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case pause.Done(s.closed):
		return &closedError{op}
	case errors.Is(err, ErrStopped):
		return os.ErrDeadlineExceeded
	default:
		return err
	}
}

// closedError is the error of op on a Stream that is closed.
type closedError struct{ op string }

func (e *closedError) Error() string { return e.op + ": " + io.ErrClosedPipe.Error() }

func (e *closedError) Is(target error) bool {
	return target == io.ErrClosedPipe || target == net.ErrClosed
}

// LocalAddr returns the address of this end.
func (s *Stream) LocalAddr() net.Addr { return s.local }

// RemoteAddr returns the address that was dialed, or network "exec" and the command.
func (s *Stream) RemoteAddr() net.Addr { return s.remote }

// SetDeadline sets the deadlines of Read and of Write. The zero time means no deadline.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline of Read, also of one that waits.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.readUntil.set(t, s.closed) }

// SetWriteDeadline sets the deadline of Write and CloseWrite, also of calls that wait.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.writeUntil.set(t, s.closed) }
