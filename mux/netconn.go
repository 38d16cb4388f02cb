package mux

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/coalesce"
)

const (
	// netBuffer is how much is read from, or handed to, the kernel at once.
	netBuffer = 128 << 10
	// netDirect is the size of the SSH library's own buffer: a shorter message reaches us as one write.
	netDirect = 4 << 10
)

// netConn is the connection under SSH. It sees each error before the SSH library does, which may return io.EOF for it,
// and it knows when the peer was last heard. It reads and writes in larger pieces than the library. Writing has a
// goroutine, so that the library encrypts while the kernel copies.
type netConn struct {
	net.Conn
	in    atomic.Pointer[bufio.Reader] // nil once closed: the library may keep a netConn for ever
	out   *coalesce.Writer
	wrote chan struct{} // closed once nothing more is written
	done  chan struct{} // closed once the goroutine that writes has ended

	pulse    alive.Pulse // of the peer
	quickAck atomic.Bool // ask for immediate ACKs after each read

	closeOnce sync.Once

	mu      sync.Mutex // guards the following
	onError func(op string, err error)
	op      string // of the first error
	err     error
}

func newNetConn(nc net.Conn) *netConn {
	c := &netConn{Conn: nc, wrote: make(chan struct{}), done: make(chan struct{})}
	c.in.Store(bufio.NewReaderSize(readerFunc(c.receive), netBuffer))
	c.out = coalesce.New(nc, netBuffer, nil).Directly(netDirect)
	c.quickAck.Store(true)
	go func() {
		defer close(c.done)
		err := c.out.Run()
		close(c.wrote)
		if err != nil {
			c.report("write", err) // may call Close
		}
	}()
	return c
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Read implements net.Conn.
func (c *netConn) Read(p []byte) (int, error) {
	in := c.in.Load()
	if in == nil {
		return 0, net.ErrClosed
	}
	return in.Read(p)
}

// receive reads from the kernel.
func (c *netConn) receive(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.pulse.Beat()
		if c.quickAck.Load() {
			setQuickAck(c.Conn)
		}
	}
	if err != nil {
		c.report("read", err)
	}
	return n, err
}

// Write implements net.Conn. The bytes that it has taken are on their way. An error is reported at once, and returned
// by a later Write.
func (c *netConn) Write(p []byte) (int, error) {
	n, err := c.out.Write(p)
	if err != nil && !errors.Is(err, coalesce.ErrClosed) { // the caller of Close has reported why
		c.report("write", err)
	}
	return n, err
}

// Close implements net.Conn. Bytes that are on their way are sent if that takes no more than a moment. Idempotent.
func (c *netConn) Close() error {
	c.closeOnce.Do(func() {
		_ = c.out.Close() // always nil
		settle(c.wrote)
		_ = c.Conn.Close() // nothing more is to be done
		<-c.wrote          // soon: the connection is closed
		c.in.Store(nil)
	})
	return nil
}

// report keeps the first error and calls onError with it, once.
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

// notify sets onError. If there was an error before, it calls fn at once.
func (c *netConn) notify(fn func(op string, err error)) {
	c.mu.Lock()
	c.onError = fn
	op, err := c.op, c.err
	c.mu.Unlock()
	if err != nil {
		fn(op, err)
	}
}
