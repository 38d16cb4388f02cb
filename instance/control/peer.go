package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// Peer is the process at the other end of a unix socket.
type Peer struct {
	credentials.CommonAuthInfo
	PID int // 0 if it is not known
	UID uint32
}

// AuthType implements credentials.AuthInfo.
func (Peer) AuthType() string { return "unix" }

// peerOf asks the kernel for the process at the other end (SO_PEERCRED, unix(7)).
func peerOf(conn net.Conn) (Peer, error) {
	p := Peer{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	nc, ok := conn.(*net.UnixConn)
	if !ok {
		return p, errors.New("not a unix socket")
	}
	raw, err := nc.SyscallConn()
	if err != nil {
		return p, err
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err == nil {
		p.PID, p.UID = int(cred.Pid), cred.Uid
	}
	return p, err
}

const (
	// greeting is the start of a gRPC client's first bytes (RFC 9113, section 3.4). greetingSize bounds how much is read.
	greeting, greetingSize = "PRI", 4 << 10
	// noHTTP1 is the answer to the stepmux ps, drain or undrain of a version that spoke HTTP/1.1 to runs.
	noHTTP1 = `{"error":"the stepmux run has a newer version than this command: ask it with the stepmux that started it"}`
)

// peerCredentials know the Peer of a connection. They encrypt nothing.
type peerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peer, _ := peerOf(conn) // without an answer it is not known
	said := make([]byte, greetingSize)
	n, err := io.ReadAtLeast(conn, said, len(greeting))
	if err != nil {
		return nil, nil, err
	}
	if !bytes.HasPrefix(said, []byte(greeting)) {
		_, err = fmt.Fprintf(conn, "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\nConnection: close\r\n\r\n%s", len(noHTTP1), noHTTP1)
		return nil, nil, errors.Join(errors.New("the client does not speak HTTP/2"), err)
	}
	return greeted{conn, io.MultiReader(bytes.NewReader(said[:n]), conn)}, peer, nil
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}

// greeted is a connection whose first bytes were read.
type greeted struct {
	net.Conn
	all io.Reader // with those bytes
}

// Read implements net.Conn.
func (g greeted) Read(b []byte) (int, error) { return g.all.Read(b) }
