package mux

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

const (
	// chunkSize is how much a stream hands to the SSH library at once: the largest packet it and
	// OpenSSH exchange.
	chunkSize = 32 << 10
	// idleChunk is the size of the buffer that waits for the peer's first byte, small because idle
	// streams are many.
	idleChunk = 512
)

// chunks holds buffers of chunkSize.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// Stream is a duplex byte stream to something on the VM. Read, Write and CloseWrite may be called
// at the same time from different goroutines, each from one.
//
// Read returns io.EOF only when the other end has said that it is done; a lost connection is a
// [*ConnError].
//
// The SSH library's own Read and Write can only be woken by the peer, so each direction has a
// goroutine, started by its first use, that Close need not wait for and the Conn's Close does.
type Stream struct {
	*channel

	readOnce sync.Once
	filled   chan piece    // from the reader goroutine
	spent    chan struct{} // to it: the piece is used up
	current  piece         // owned by Read

	writeOnce sync.Once
	out       chan outPiece // to the writer goroutine
	written   chan error    // from it, one for each outPiece

	closeWrite sync.Once
}

// piece is what one read of the channel gave.
type piece struct {
	data []byte
	err  error
}

// outPiece is what the writer goroutine shall send: n bytes of buf, which it gives back, or, without a
// buf, the end of the stream. One goroutine does both because the library allows no other.
type outPiece struct {
	buf *[chunkSize]byte
	n   int
}

func newStream(ch *channel) *Stream {
	return &Stream{
		channel: ch,
		filled:  make(chan piece),
		spent:   make(chan struct{}, 1),
		out:     make(chan outPiece),
		written: make(chan error),
	}
}

// Read reads what the other end sent. See [Stream] for its errors.
func (s *Stream) Read(p []byte) (int, error) {
	s.readOnce.Do(func() {
		if !s.conn.spawn(s.readLoop) {
			close(s.filled)
		}
	})
	for len(s.current.data) == 0 {
		if s.current.err != nil {
			return 0, s.current.err
		}
		select {
		case next, ok := <-s.filled:
			if !ok {
				next.err = s.conn.ended("read")
			}
			s.current = next
		case <-s.closed:
			return 0, s.readError(io.EOF)
		}
	}
	n := copy(p, s.current.data)
	s.current.data = s.current.data[n:]
	if len(s.current.data) == 0 && s.current.err == nil {
		s.spent <- struct{}{}
	}
	return n, nil
}

// readLoop reads the channel ahead by one piece, in small pieces while little comes.
func (s *Stream) readLoop() {
	var small [idleChunk]byte
	var large *[chunkSize]byte
	defer func() {
		if large != nil {
			chunks.Put(large)
		}
	}()
	buf := small[:]
	for {
		n, err := s.ssh.Read(buf)
		if err != nil {
			err = s.readError(err)
		}
		select {
		case s.filled <- piece{buf[:n], err}:
		case <-s.closed:
			return
		}
		if err != nil {
			return
		}
		select {
		case <-s.spent:
		case <-s.closed:
			return
		}
		switch {
		case n == len(buf) && large == nil:
			large = chunks.Get().(*[chunkSize]byte)
			buf = large[:]
		case n <= idleChunk && large != nil:
			chunks.Put(large)
			large, buf = nil, small[:]
		}
	}
}

// Write sends p. It returns when the SSH library has taken all of it, which waits for the window the
// other end grants.
func (s *Stream) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		piece := outPiece{buf: chunks.Get().(*[chunkSize]byte)}
		piece.n = copy(piece.buf[:], p)
		if err := s.send(piece); err != nil {
			return total, s.sendError("write", err)
		}
		total += piece.n
		p = p[piece.n:]
	}
	return total, nil
}

// CloseWrite tells the other end that no more comes, after what Write has sent; reading goes on.
// Idempotent.
func (s *Stream) CloseWrite() error {
	var err error
	s.closeWrite.Do(func() {
		if err = s.send(outPiece{}); err != nil {
			err = s.sendError("close write", err)
		}
	})
	return err
}

// send passes a piece to the writer goroutine and waits for its word.
func (s *Stream) send(piece outPiece) error {
	s.writeOnce.Do(func() { s.conn.spawn(s.writeLoop) }) // if not spawned, the connection is done
	select {
	case s.out <- piece:
	case <-s.closed:
		return s.unsent(piece)
	case <-s.gone:
		return s.unsent(piece)
	case <-s.conn.done:
		return s.unsent(piece)
	}
	// From here the buffer is the writer's: it may still read it when Close has woken us.
	select {
	case err := <-s.written:
		return err
	case <-s.closed:
		return io.EOF
	}
}

func (s *Stream) unsent(piece outPiece) error {
	if piece.buf != nil {
		chunks.Put(piece.buf)
	}
	return io.EOF
}

// writeLoop hands pieces to the SSH library until the stream is closed.
func (s *Stream) writeLoop() {
	for {
		select {
		case piece := <-s.out:
			select {
			case s.written <- s.transmit(piece):
			case <-s.closed:
				return
			}
		case <-s.closed:
			return
		case <-s.gone:
			return
		}
	}
}

func (s *Stream) transmit(piece outPiece) error {
	if piece.buf == nil {
		return s.ssh.CloseWrite()
	}
	_, err := s.ssh.Write(piece.buf[:piece.n])
	chunks.Put(piece.buf)
	return err
}

// DialUnix connects to a unix socket on the VM (direct-streamlocal@openssh.com, OpenSSH's PROTOCOL,
// section 2.4). Such channels are no sessions to the server. ctx bounds the wait for the server's
// answer. The caller closes the Stream.
//
// OpenSSH gives the same answer for a socket that is missing and for forwarding that is switched
// off; other servers' policy is ErrForbidden.
func (c *Conn) DialUnix(ctx context.Context, path string) (*Stream, error) {
	if strings.IndexByte(path, 0) >= 0 {
		// OpenSSH drops the whole connection over it.
		return nil, fmt.Errorf("dial unix %q: the path has a NUL byte", path)
	}
	return c.dialStream(ctx, "dial unix "+path, "direct-streamlocal@openssh.com", ssh.Marshal(struct {
		Path     string
		Reserved string
		Port     uint32
	}{Path: path}))
}

// Dial connects to a host as seen from the VM (direct-tcpip; RFC 4254, section 7.2), or, with
// network "unix", to a socket as DialUnix does. ctx bounds the wait for the server's answer. The
// caller closes the Stream.
func (c *Conn) Dial(ctx context.Context, network, addr string) (*Stream, error) {
	switch network {
	case "unix":
		return c.DialUnix(ctx, addr)
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("dial %s %s: %w", network, addr, net.UnknownNetworkError(network))
	}
	op := "dial " + network + " " + addr
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: port: %w", op, err)
	}
	return c.dialStream(ctx, op, "direct-tcpip", ssh.Marshal(struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}{host, uint32(port), "127.0.0.1", 0}))
}

func (c *Conn) dialStream(ctx context.Context, op, kind string, extra []byte) (*Stream, error) {
	ch, err := c.open(ctx, openSpec{
		op:     op,
		kind:   kind,
		extra:  extra,
		opened: func() { c.streams.Add(1) },
		closed: func(wasOpen bool) {
			if wasOpen {
				c.streams.Add(-1)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return newStream(ch), nil
}
