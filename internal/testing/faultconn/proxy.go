package faultconn

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// proxyChunk is the size of the proxy's copies.
const proxyChunk = 64 << 10

// Proxy is a TCP proxy in front of a server that puts faults into its connections. Its methods may be called from any
// goroutine. It owns a goroutine that accepts and two for each connection; Close waits for them.
type Proxy struct {
	target   string
	link     Config
	listener net.Listener
	running  sync.WaitGroup // every goroutine of the proxy

	mu      sync.Mutex // guards the following
	closed  bool
	stalled bool
	total   int
	conns   map[*proxied]struct{}
}

// proxied is one connection through the proxy.
type proxied struct {
	client *Conn
	server net.Conn
}

// Listen starts a proxy in front of target, a host:port. The link to its clients has the faults of the Config. Read and
// write are the proxy's: CutAfterRead counts the bytes that clients send. The caller calls Close.
func Listen(target string, link Config) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, link: link, listener: listener, conns: make(map[*proxied]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the host:port on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// TotalConns returns how many connections the proxy has accepted.
func (p *Proxy) TotalConns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// Conns returns how many connections are open.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Cut breaks every connection at once: both ends get a reset, and bytes in flight are lost. New connections are still
// accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.cut()
	}
}

// End closes every connection: each end reads all bytes that had arrived, and then the end. New connections are still
// accepted.
func (p *Proxy) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for c := range p.conns {
		p.running.Go(c.close)
	}
}

// Reshape changes Delay and Bandwidth, for open and for new connections.
func (p *Proxy) Reshape(delay time.Duration, bandwidth int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link.Delay, p.link.Bandwidth = delay, bandwidth
	for c := range p.conns {
		c.client.Reshape(delay, bandwidth)
	}
}

// Stall freezes open and new connections: they stay open, and no byte gets through. Each end looks to the other like a
// machine that has stopped.
func (p *Proxy) Stall() { p.setStalled(true) }

// Resume ends a Stall. Bytes that were sent during the Stall get through.
func (p *Proxy) Resume() { p.setStalled(false) }

func (p *Proxy) setStalled(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = on
	for c := range p.conns {
		c.stall(on)
	}
}

// Close ends the proxy with its connections and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close() // nothing to lose
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.running.Go(func() { p.serve(client) })
		}
	}
}

// serve connects a client to the target and copies until one of them ends.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	p.total++
	p.mu.Unlock()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the client sees a proxy without a server
		return
	}
	p.mu.Lock()
	link := p.link
	p.mu.Unlock()
	c := &proxied{client: New(client, link), server: server}
	defer c.close()
	if !p.add(c) {
		return
	}
	defer p.remove(c)
	p.running.Go(func() {
		copyUntilEnd(server, c.client)
		// SSH needs no half-close: when one end has ended, the other sends no more.
		_ = server.Close() // wakes the other direction
	})
	copyUntilEnd(c.client, server)
}

// add registers a connection, unless the proxy is closed.
func (p *Proxy) add(c *proxied) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	c.stall(p.stalled)
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *proxied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (c *proxied) stall(on bool) {
	if on {
		c.client.Stall()
	} else {
		c.client.Resume()
	}
}

// cut resets both ends.
func (c *proxied) cut() {
	c.client.Cut()
	if tcp, ok := c.server.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the peer sees a normal close
	}
	_ = c.server.Close() // nothing to lose
}

// close ends both ends after the bytes in flight to the client have arrived.
func (c *proxied) close() {
	_ = c.client.Close() // always nil
	_ = c.server.Close() // nothing to lose
}

// copyUntilEnd copies until either fails, without the splicing of io.Copy.
func copyUntilEnd(dst io.Writer, src io.Reader) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, proxyChunk))
}
