package mux

import (
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/alive"
)

const (
	// netBuffer is how many bytes are read from the kernel beyond the number that the SSH library asks for.
	netBuffer = 128 << 10
	// libraryBuffer is the size of the SSH library's buffer for writing (bufio's default). A larger packet reaches us in
	// pieces. The first has this size.
	libraryBuffer = 4 << 10
)

// netConn is the connection under SSH. It sees each error before the SSH library does, which may report io.EOF
// instead, and it records when the peer was last heard. It reads and writes a packet with one system call where the
// library needs several. The library calls Read from one goroutine, and Write with a lock held.
type netConn struct {
	net.Conn
	scatter, gather *vector // nil if Conn is not TCP

	in    atomic.Pointer[[netBuffer]byte] // nil once closed: the library may keep a netConn for ever
	ahead [2]int                          // the part of in, from and to, that Read has not returned yet; owned by Read

	whole atomic.Bool // hold back the first piece of a packet; see joinPieces
	begun []byte      // the first piece of a packet; owned by Write

	pulse    alive.Pulse // of the peer
	quickAck atomic.Bool // ask for an immediate ACK after each read

	closeOnce sync.Once

	mu      sync.Mutex // guards the following
	closed  bool       // Close was called
	onError func(op string, err error)
	op      string // of the first error
	err     error
}

func newNetConn(nc net.Conn) *netConn {
	c := &netConn{Conn: nc}
	c.scatter, c.gather = vectors(nc)
	c.in.Store(new([netBuffer]byte))
	c.quickAck.Store(true)
	return c
}

// Read implements net.Conn.
func (c *netConn) Read(p []byte) (int, error) {
	in := c.in.Load()
	if in == nil {
		return 0, net.ErrClosed
	}
	if from, to := c.ahead[0], c.ahead[1]; from < to {
		n := copy(p, in[from:to])
		c.ahead[0] += n
		return n, nil
	}
	n, err := c.receive(p, in[:])
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

// receive reads from the kernel: first into p, and any further bytes into in.
func (c *netConn) receive(p, in []byte) (n int, err error) {
	if c.scatter == nil {
		read, err := c.Conn.Read(in)
		n = copy(p, in[:read])
		c.ahead = [2]int{n, read}
		return n, err
	}
	n, err = c.scatter.do(p, in)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	c.ahead = [2]int{0, max(n-len(p), 0)}
	return min(n, len(p)), err
}

// joinPieces makes Write hold back the first piece of a packet until the next piece comes. It is called when the
// cipher is known. A packet of exactly libraryBuffer bytes has only one piece, and would wait for the next packet.
// Ciphers that authenticate the length never make such a packet: their packets have 4 bytes, a multiple of the block
// (16 or 8 bytes) and a tag of 16.
func (c *netConn) joinPieces(cipher string) {
	switch cipher {
	case ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305:
		c.whole.Store(true)
	}
}

// Write implements net.Conn. An error is reported at once.
func (c *netConn) Write(p []byte) (int, error) {
	var err error
	switch {
	case len(c.begun) > 0:
		err = c.writeBoth(c.begun, p)
		c.begun = c.begun[:0]
	case len(p) == libraryBuffer && c.whole.Load():
		c.begun = append(c.begun, p...)
	default:
		err = c.writeBoth(nil, p)
	}
	if err != nil {
		c.report("write", err)
		return 0, err
	}
	return len(p), nil
}

// writeBoth writes first, then second. An empty first is not written: a connection that carries messages would send it
// as one.
func (c *netConn) writeBoth(first, second []byte) error {
	if c.gather != nil {
		return c.gather.writeAll(first, second)
	}
	parts := net.Buffers{first, second}
	if len(first) == 0 {
		parts = parts[1:]
	}
	_, err := parts.WriteTo(c.Conn)
	return err
}

// Close implements net.Conn. Idempotent. Errors after it are not reported: they only follow from the Close, and its
// caller knows the reason. The SSH library, for example, closes after a failed key exchange while it still writes
// packets that waited for the exchange.
func (c *netConn) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		_ = c.Conn.Close() // nothing more is to be done
		c.in.Store(nil)
	})
	return nil
}

// report keeps the first error before Close and passes it to onError, once.
func (c *netConn) report(op string, err error) {
	c.mu.Lock()
	first := c.err == nil && !c.closed
	if first {
		c.op, c.err = op, err
	}
	tell := c.onError
	c.mu.Unlock()
	if first && tell != nil {
		tell(op, err)
	}
}

// notify sets onError. If an error was reported before, it calls fn at once.
func (c *netConn) notify(fn func(op string, err error)) {
	c.mu.Lock()
	c.onError = fn
	op, err := c.op, c.err
	c.mu.Unlock()
	if err != nil {
		fn(op, err)
	}
}
