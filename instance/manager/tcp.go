package manager

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/stepmux/stepmux/instance/manager/access"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	// maxGuests bounds the connections by TCP that have not shown the token, and maxClients those that have.
	maxGuests, maxClients = 100, 1000
	// clientPing and clientDead are the times after which a silent client is asked for a sign of life, and is given up.
	clientPing, clientDead = 30 * time.Second, 30 * time.Second
	// guestTime is how long a connection may take to show the token.
	guestTime = 15 * time.Second
)

// shortGuestTime replaces guestTime unless it is zero. Tests set it while a server runs.
var shortGuestTime atomic.Int64

// ServeTCP is Serve for a listener on TCP. Clients must use TLS 1.3 and show the token with each call. Leases are
// refused: the process that holds one cannot be watched from here.
func (m *Manager) ServeTCP(
	ctx context.Context, listener net.Listener, cert tls.Certificate, token *access.Token,
) error {
	d := &tcpDoor{token: token}
	secure := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
	return m.serve(ctx, tcpListener{listener, d},
		grpc.Creds(tcpCredentials{secure}), grpc.InTapHandle(d.admit),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: clientPing, Timeout: clientDead}))
}

// tcpDoor counts the connections by TCP and asks for the token.
type tcpDoor struct {
	token *access.Token

	mu      sync.Mutex // guards the following
	guests  int        // connections that have not shown the token
	clients int        // those that have
}

// tcpListener accepts connections for a tcpDoor.
type tcpListener struct {
	net.Listener
	door *tcpDoor
}

// Accept implements net.Listener. Connections over the bound are closed.
func (l tcpListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.door.welcome(nc); c != nil {
			return c, nil
		}
		_ = nc.Close() // it was not used
	}
}

// tcpConn is a connection by TCP.
type tcpConn struct {
	net.Conn
	door  *tcpDoor
	timer *time.Timer // closes a guest

	known, gone bool // guarded by the door's mu
}

// welcome returns a guest, or nil if there are too many.
func (d *tcpDoor) welcome(nc net.Conn) *tcpConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.guests >= maxGuests {
		return nil
	}
	d.guests++
	limit := time.Duration(cmp.Or(shortGuestTime.Load(), int64(guestTime)))
	return &tcpConn{Conn: nc, door: d, timer: time.AfterFunc(limit, func() { _ = nc.Close() })}
}

// Close implements net.Conn.
func (c *tcpConn) Close() error {
	c.timer.Stop()
	c.door.mu.Lock()
	switch {
	case c.gone:
	case c.known:
		c.door.clients--
	default:
		c.door.guests--
	}
	c.gone = true
	c.door.mu.Unlock()
	return c.Conn.Close()
}

// show notes that a connection has shown the token. It reports false if there are too many such connections.
func (c *tcpConn) show() bool {
	c.door.mu.Lock()
	defer c.door.mu.Unlock()
	if c.known || c.gone {
		return true
	}
	if c.door.clients >= maxClients {
		return false
	}
	c.timer.Stop()
	c.known = true
	c.door.guests--
	c.door.clients++
	return true
}

// tcpCredentials are TLS, and know the connection of a call.
type tcpCredentials struct {
	credentials.TransportCredentials
}

// tcpInfo is the connection of a call.
type tcpInfo struct {
	credentials.TLSInfo
	conn *tcpConn
}

// ServerHandshake implements credentials.TransportCredentials.
func (c tcpCredentials) ServerHandshake(nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, ok := nc.(*tcpConn)
	secure, info, err := c.TransportCredentials.ServerHandshake(nc)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo, is := info.(credentials.TLSInfo)
	if !ok || !is {
		return nil, nil, errors.New("BUG: not a connection of the listener")
	}
	return secure, tcpInfo{tlsInfo, conn}, nil
}

// Clone implements credentials.TransportCredentials.
func (c tcpCredentials) Clone() credentials.TransportCredentials {
	return tcpCredentials{c.TransportCredentials.Clone()}
}

// admit asks for the token before anything of a call but its headers is read.
func (d *tcpDoor) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	from, _ := peer.FromContext(ctx)
	info, ok := from.AuthInfo.(tcpInfo)
	shown := call.Header.Get("authorization")
	if !ok || len(shown) != 1 || !d.token.Authorizes(shown[0]) {
		return ctx, status.Error(codes.Unauthenticated, "the token is missing or wrong: the manager wants that of its "+
			"--token-file")
	}
	if !info.conn.show() {
		return ctx, status.Errorf(codes.ResourceExhausted, "there are %d connections already", maxClients)
	}
	switch strings.TrimPrefix(call.FullMethodName, "/"+pb.Manager_ServiceDesc.ServiceName+"/") {
	case "Reserve", "Exec", "Release":
		return ctx, status.Error(codes.Unimplemented, "leases are for programs on the manager's machine, where the manager "+
			"sees the end of the process that holds one: use its socket, or its SSH server")
	}
	return ctx, nil
}
