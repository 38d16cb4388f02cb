package mux

import (
	"context"
	"net"
	"os"
	"time"
)

// DialNet is Dial with "tcp" for what wants a net.Conn, such as the connection to a machine that only this one
// reaches: see Config.DialNet. It has no deadlines (they are os.ErrNoDeadline), but its Close wakes what waits on
// it. The caller closes it.
func (c *Conn) DialNet(ctx context.Context, addr string) (net.Conn, error) {
	s, err := c.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &streamConn{Stream: s, local: streamAddr(c.addr), remote: streamAddr(addr)}, nil
}

// streamConn is a Stream as a net.Conn.
type streamConn struct {
	*Stream
	local, remote streamAddr
}

// streamAddr is a host:port as another machine sees it.
type streamAddr string

func (a streamAddr) Network() string { return "tcp" }
func (a streamAddr) String() string  { return string(a) }

// LocalAddr returns the address of the machine that connects.
func (c *streamConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address that was dialed.
func (c *streamConn) RemoteAddr() net.Addr { return c.remote }

func (c *streamConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *streamConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *streamConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
