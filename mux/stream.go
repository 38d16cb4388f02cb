package mux

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/channel"
)

// DialUnix connects to a unix socket on the VM (direct-streamlocal@openssh.com, OpenSSH's PROTOCOL, section 2.4). Such
// channels do not count as sessions. ctx bounds the wait for the server's answer. The caller closes the Stream.
//
// OpenSSH gives the same answer if the socket is missing and if forwarding is switched off. If another server refuses
// to forward, the error is ErrForbidden.
func (c *Conn) DialUnix(ctx context.Context, path string) (*Stream, error) {
	if strings.IndexByte(path, 0) >= 0 {
		// OpenSSH would close the whole connection.
		return nil, fmt.Errorf("dial unix %q: the path has a NUL byte", path)
	}
	return c.dialStream(ctx, channel.Addr{Net: "unix", Text: path}, "direct-streamlocal@openssh.com", ssh.Marshal(struct {
		Path     string
		Reserved string
		Port     uint32
	}{Path: path}))
}

// Dial connects to a host as seen from the VM (direct-tcpip; RFC 4254, section 7.2). With network "unix" it is
// DialUnix. ctx bounds the wait for the server's answer. The caller closes the Stream.
func (c *Conn) Dial(ctx context.Context, network, addr string) (*Stream, error) {
	switch network {
	case "unix":
		return c.DialUnix(ctx, addr)
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("dial %s %s: %w", network, addr, net.UnknownNetworkError(network))
	}
	op := "dial " + network + " " + addr
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: port: %w", op, err)
	}
	return c.dialStream(ctx, channel.Addr{Net: network, Text: addr}, "direct-tcpip", ssh.Marshal(struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}{host, uint32(port), "127.0.0.1", 0}))
}

// DialNet is Dial with "tcp" that returns a net.Conn. Use it as the Config.DialNet of a machine that can only be
// reached through this one.
func (c *Conn) DialNet(ctx context.Context, addr string) (net.Conn, error) {
	s, err := c.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err // not a nil *Stream
	}
	return s, nil
}

func (c *Conn) dialStream(ctx context.Context, to channel.Addr, kind string, extra []byte) (*Stream, error) {
	c.streams.tryAcquire(1)
	ch, err := c.open(ctx, "dial "+to.Net+" "+to.Text, kind, extra, c.streams)
	if err != nil {
		return nil, err
	}
	return channel.NewStream(newChannelStream(ch), c.local(), to), nil
}
