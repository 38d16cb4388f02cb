package mux

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// netConn is the connection under SSH. It sees every error before the SSH library does, so that
// what the library then calls io.EOF can be told for what it is, and it knows when the peer was
// last heard.
type netConn struct {
	net.Conn
	start    time.Time    // by the monotonic clock, like all that is derived from it
	lastRead atomic.Int64 // nanoseconds from start to the last byte from the peer
	quickAck atomic.Bool  // ask for immediate ACKs after each read

	mu      sync.Mutex // guards the following
	onError func(op string, err error)
	op      string // of the first error
	err     error
}

func newNetConn(nc net.Conn) *netConn {
	c := &netConn{Conn: nc, start: time.Now()}
	c.quickAck.Store(true)
	return c
}

func (c *netConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.lastRead.Store(int64(time.Since(c.start)))
		if c.quickAck.Load() {
			setQuickAck(c.Conn)
		}
	}
	if err != nil {
		c.report("read", err)
	}
	return n, err
}

func (c *netConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.report("write", err)
	}
	return n, err
}

// report remembers the first error and tells onError of it, once.
func (c *netConn) report(op string, err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.op, c.err = op, err
	}
	tell := c.onError
	c.mu.Unlock()
	if first && tell != nil {
		tell(op, err)
	}
}

// notify sets who is told of the first error; one that came earlier is told at once.
func (c *netConn) notify(fn func(op string, err error)) {
	c.mu.Lock()
	c.onError = fn
	op, err := c.op, c.err
	c.mu.Unlock()
	if err != nil {
		fn(op, err)
	}
}

// heard returns when the peer was last heard.
func (c *netConn) heard() time.Time { return c.start.Add(time.Duration(c.lastRead.Load())) }
