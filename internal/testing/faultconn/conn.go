package faultconn

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	defaultBuffer = 16 << 20
	readChunk     = 64 << 10
	// flushGrace is how long Close waits, after the delay, for the peer to read the bytes in flight.
	flushGrace = time.Second
)

// ErrCut is the error of reads and writes after a cut.
var ErrCut = errors.New("faultconn: connection cut")

// Config holds the faults of a connection. The zero value has no faults.
type Config struct {
	// Delay is how long a byte takes from one end to the other, in each direction: half the round trip. If zero, no delay
	// is added.
	Delay time.Duration

	// Bandwidth limits each direction, in bytes per second. If zero, it is not limited.
	Bandwidth int

	// Buffer limits the bytes in flight in each direction; a writer waits for room. It must exceed Delay times the
	// throughput. If zero, 16 MiB.
	Buffer int

	// CutAfterRead and CutAfterWrite cut the connection after exactly this many bytes in one direction. Bytes that
	// arrived before the cut can still be read. If zero, the connection does not cut itself.
	CutAfterRead, CutAfterWrite int64
}

// Conn is a connection with faults. Its methods may be called from any goroutine.
//
// Each direction is a queue and a goroutine that moves bytes between it and the wrapped connection;
// Close waits for both.
type Conn struct {
	nc      net.Conn
	in, out *lane
	pumps   sync.WaitGroup
	closing sync.Once
}

var _ net.Conn = (*Conn)(nil)

// New wraps nc and owns it from now on.
func New(nc net.Conn, config Config) *Conn {
	config.Buffer = cmp.Or(config.Buffer, defaultBuffer)
	c := &Conn{nc: nc, in: newLane(config), out: newLane(config)}
	c.pumps.Go(func() { c.receive(config.CutAfterRead) })
	c.pumps.Go(func() { c.send(config.CutAfterWrite) })
	return c
}

// receive moves bytes from the wrapped connection to the queue of Read.
func (c *Conn) receive(limit int64) {
	buf := make([]byte, readChunk)
	for total := int64(0); ; {
		n, err := c.nc.Read(buf[:chunkSize(total, limit)])
		total += int64(n)
		if _, full := c.in.push(buf[:n]); full != nil {
			return // closed or cut
		}
		if err != nil {
			c.in.end(err)
			return
		}
		if total == limit && limit > 0 {
			c.in.end(ErrCut)
			c.sever()
			return
		}
	}
}

// send moves bytes from the queue of Write to the wrapped connection.
func (c *Conn) send(limit int64) {
	buf := make([]byte, readChunk)
	for total := int64(0); ; {
		n, err := c.out.pop(buf[:chunkSize(total, limit)])
		if err != nil {
			return // closed, and all was sent; or cut
		}
		total += int64(n)
		if _, err := c.nc.Write(buf[:n]); err != nil {
			c.out.fail(err)
			return
		}
		if total == limit && limit > 0 {
			c.Cut()
			return
		}
	}
}

// chunkSize returns how many bytes may be moved at once after total of limit bytes.
func chunkSize(total, limit int64) int64 {
	if limit <= 0 {
		return readChunk
	}
	return min(readChunk, limit-total)
}

// Read reads bytes that have arrived. After Cut or Close it fails with ErrCut or net.ErrClosed, even if bytes are still
// in flight.
func (c *Conn) Read(p []byte) (int, error) { return c.in.pop(p) }

// Write sends p and returns when it is in flight. An error of the wrapped connection is reported by a
// later Write.
func (c *Conn) Write(p []byte) (int, error) { return c.out.push(p) }

// Stall freezes both directions: no byte arrives at either end, and the connection stays open. Bytes in flight arrive
// after Resume. It is idempotent.
func (c *Conn) Stall() {
	c.in.stall(true)
	c.out.stall(true)
}

// Resume ends a Stall.
func (c *Conn) Resume() {
	c.in.stall(false)
	c.out.stall(false)
}

// Reshape changes Delay and Bandwidth of both directions. Bytes in flight keep their delay. Bytes that wait for
// bandwidth leave with the new one.
func (c *Conn) Reshape(delay time.Duration, bandwidth int) {
	c.in.reshape(delay, bandwidth)
	c.out.reshape(delay, bandwidth)
}

// Cut breaks the connection at once: bytes in flight are lost, reads and writes fail with ErrCut, and the peer of a TCP
// connection gets a reset. It does not wait. It is idempotent.
func (c *Conn) Cut() {
	c.in.fail(ErrCut)
	c.sever()
}

// sever cuts the wrapped connection and drops the bytes on their way to it.
func (c *Conn) sever() {
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the peer sees a normal close
	}
	c.out.fail(ErrCut)
	_ = c.nc.Close() // nothing to lose
}

// Close closes the connection. It first delivers the bytes in flight to the peer, for at most Delay and a second; a
// stalled connection loses them. Blocked reads and writes return net.ErrClosed. It is idempotent, and every call waits.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		_ = c.nc.SetWriteDeadline(time.Now().Add(c.out.distance() + flushGrace)) // an error means it is closed
		c.in.fail(net.ErrClosed)
		c.out.finish()
		if c.nc.SetReadDeadline(time.Now()) != nil { // it wakes receive
			_ = c.nc.Close() // cut already, or it knows no deadlines
		}
	})
	c.pumps.Wait()
	_ = c.nc.Close() // nothing to lose
	return nil
}

// LocalAddr returns the local address of the wrapped connection.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the remote address of the wrapped connection.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetDeadline sets the deadlines of Read and Write, as net.Conn says.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline of Read. It always returns nil.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.popDeadline, t)
	return nil
}

// SetWriteDeadline sets the deadline of Write. It always returns nil.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.pushDeadline, t)
	return nil
}
