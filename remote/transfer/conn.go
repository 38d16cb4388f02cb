package transfer

import (
	"context"
	"net"
	"sync"
	"time"
)

// lastWord is how long a failed write waits for an answer of the server.
const lastWord = time.Second

// answeringConn is a connection whose server may refuse a request while its body is still sent, and close the
// connection. The write that fails then waits for the answer to be read: net/http would return the error of the write
// in its place.
type answeringConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{} // closed by Close
}

// dialer returns a function that makes such connections.
func dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 30 * time.Second}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &answeringConn{Conn: c, closed: make(chan struct{})}, nil
	}
}

// Write implements net.Conn.
func (c *answeringConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		timer := time.NewTimer(lastWord)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closed:
		}
	}
	return n, err
}

// Close implements net.Conn. It wakes a write that waits.
func (c *answeringConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
