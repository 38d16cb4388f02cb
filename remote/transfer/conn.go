package transfer

import (
	"context"
	"net"
	"sync"
	"time"
)

// lastWord bounds the wait for the server's answer after a failed write.
const lastWord = time.Second

// answeringConn is a connection to a server that may refuse a request while its body is still being sent, and close the
// connection. Then a write fails. The failed write waits until the answer has been read: otherwise net/http would
// return the error of the write instead of the answer.
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

// Close implements net.Conn. It wakes a waiting write.
func (c *answeringConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
