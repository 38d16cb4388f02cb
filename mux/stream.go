package mux

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Stream is a duplex byte stream to something on the VM. Read, Write and CloseWrite may be called
// at the same time from different goroutines, each from one.
type Stream struct{ impl duplex }

// duplex is a Stream by one of the routes.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Read reads what the other end sent. It returns io.EOF only when the other end has said that it is
// done; a lost connection is a [*ConnError], a relay that has ended a [*RelayError], and after Close it is
// io.ErrClosedPipe.
func (s *Stream) Read(p []byte) (int, error) { return s.impl.Read(p) }

// Write sends p. It returns when all of it is on its way, which waits for the window the other end
// grants. Its errors are those of Read, but for io.EOF: an other end that takes no more is io.ErrClosedPipe.
func (s *Stream) Write(p []byte) (int, error) { return s.impl.Write(p) }

// CloseWrite tells the other end that no more comes, after what Write has sent; reading goes on.
// Idempotent.
func (s *Stream) CloseWrite() error { return s.impl.CloseWrite() }

// Close closes the stream and wakes what waits on it; it does not wait for the peer. Idempotent.
func (s *Stream) Close() error { return s.impl.Close() }

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
	return &Stream{newChannelStream(ch)}, nil
}
