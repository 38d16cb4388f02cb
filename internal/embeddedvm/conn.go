package embeddedvm

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxForwards bounds the socket channels of one connection, so that a hostile client cannot exhaust the process. sshd
// ends a connection with 16384 channels.
const maxForwards = 4096

// openFailed is sshd's only text for a channel that it does not open.
const openFailed = "open failed"

// conn is one TCP connection of a client.
type conn struct {
	server *Server
	nc     net.Conn
	ctx    context.Context // ends with the connection
	end    context.CancelFunc

	sessions atomic.Int32
	forwards atomic.Int32
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, nc: nc}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// run serves the connection until it ends. The server ends processes that its channels leave behind.
func (c *conn) run() {
	defer c.end()
	defer c.nc.Close()
	// An error means that the connection is closed; the handshake finds out, too.
	_ = c.nc.SetDeadline(time.Now().Add(c.server.config.HandshakeTimeout))
	sc, channels, requests, err := ssh.NewServerConn(c.nc, c.server.ssh)
	if err != nil {
		return // x/crypto has told the client
	}
	_ = c.nc.SetDeadline(time.Time{})
	c.server.running.Go(func() { refuseAll(requests) })
	for nch := range channels {
		c.open(nch)
	}
	_ = sc.Wait() // the end's reason does not matter
}

// refuseAll answers requests such as keepalive@openssh.com with a failure, as sshd does. That also shows that the
// server is alive (RFC 4254, section 4).
func refuseAll(requests <-chan *ssh.Request) {
	for req := range requests {
		_ = req.Reply(false, nil) // an error means the connection is ending
	}
}

// open opens a session or a forward. It does not block.
func (c *conn) open(nch ssh.NewChannel) {
	switch nch.ChannelType() {
	case "session":
		c.openSession(nch)
	case "direct-streamlocal@openssh.com":
		c.openForward(nch, unixTarget)
	case "direct-tcpip":
		c.openForward(nch, tcpTarget)
	default:
		reject(nch, ssh.ConnectionFailed)
	}
}

func reject(nch ssh.NewChannel, reason ssh.RejectionReason) {
	_ = nch.Reject(reason, openFailed) // an error means the connection is ending
}

// cut closes the TCP connection with a reset.
func (c *conn) cut() {
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the peer sees a normal close
	}
	_ = c.nc.Close() // nothing to lose
	c.end()
}

// reserve takes one of limit places counted by n, unless all are taken.
func reserve(n *atomic.Int32, limit int) bool {
	if int(n.Add(1)) > limit {
		n.Add(-1)
		return false
	}
	return true
}
