package embeddedvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
)

// dialTimeout bounds the connect to a forward's target.
const dialTimeout = 30 * time.Second

// socket is a *net.UnixConn or a *net.TCPConn.
type socket interface {
	net.Conn
	CloseWrite() error
}

// parseTarget reads the target of a forward from a channel's type-specific data.
type parseTarget func(data []byte) (network, address string, err error)

// unixTarget parses the data of direct-streamlocal@openssh.com (OpenSSH's PROTOCOL, section 2.4). It refuses relative
// paths: they have no meaning here, and package net takes a path that begins with @ for an abstract socket.
func unixTarget(data []byte) (network, address string, err error) {
	var msg struct {
		Path     string
		Reserved string
		Port     uint32
	}
	if err := ssh.Unmarshal(data, &msg); err != nil {
		return "", "", fmt.Errorf("parse socket path: %w", err)
	}
	if !filepath.IsAbs(msg.Path) {
		return "", "", errors.New("parse socket path: not absolute")
	}
	return "unix", msg.Path, nil
}

// tcpTarget parses the data of direct-tcpip (RFC 4254, section 7.2).
func tcpTarget(data []byte) (network, address string, err error) {
	var msg struct {
		Host       string
		Port       uint32
		Originator string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(data, &msg); err != nil {
		return "", "", fmt.Errorf("parse address: %w", err)
	}
	if msg.Port == 0 || msg.Port > 65535 {
		return "", "", fmt.Errorf("parse address: port %d", msg.Port)
	}
	return "tcp", net.JoinHostPort(msg.Host, strconv.FormatUint(uint64(msg.Port), 10)), nil
}

// openForward connects the channel to a socket of this machine, without blocking.
func (c *conn) openForward(nch ssh.NewChannel, parse parseTarget) {
	network, address, err := parse(nch.ExtraData())
	if err != nil {
		reject(nch, ssh.ConnectionFailed)
		return
	}
	if !reserve(&c.forwards, maxForwards) {
		reject(nch, ssh.ResourceShortage)
		return
	}
	c.server.running.Go(func() {
		defer c.forwards.Add(-1)
		c.forward(nch, network, address)
	})
}

// forward dials the target, accepts the channel and copies both ways until both are done.
func (c *conn) forward(nch ssh.NewChannel, network, address string) {
	dialer := net.Dialer{Timeout: dialTimeout}
	nc, err := dialer.DialContext(c.ctx, network, address)
	if err != nil {
		reject(nch, ssh.ConnectionFailed)
		return
	}
	defer nc.Close()
	target, ok := nc.(socket)
	if !ok {
		reject(nch, ssh.ConnectionFailed)
		return
	}
	ch, requests, err := nch.Accept()
	if err != nil {
		return // the connection is ending
	}
	c.bridge(ch, requests, target)
}

// bridge copies between a channel and a socket until both directions have ended or the channel is closed. When one
// direction ends, the other goes on.
func (c *conn) bridge(ch ssh.Channel, requests <-chan *ssh.Request, target socket) {
	defer context.AfterFunc(c.ctx, func() {
		_ = target.Close() // nothing to lose
	})()
	sent := make(chan struct{}) // closed when everything was sent to the target
	c.server.running.Go(func() {
		err := copyBytes(target, ch)
		_ = target.CloseWrite() // an error means the socket is closed
		close(sent)
		if err != nil {
			_ = copyBytes(io.Discard, ch) // keep the channel's window open
		}
	})
	closed := make(chan struct{})
	c.server.running.Go(func() {
		defer close(closed)
		refuseAll(requests)
		<-sent // data that the client sent before it closed the channel is still delivered
		_ = target.Close()
	})
	_ = copyBytes(ch, target) // however it ends
	_ = ch.CloseWrite()       // an error means the channel is closed
	<-sent
	_ = ch.Close() // an error means the channel is closed
	<-closed
}
