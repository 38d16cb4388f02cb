package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Address is where a daemon listens, as seen from the machine that connects to it. The zero value is the socket
// /var/run/docker.sock.
type Address struct {
	// Socket is the path of a unix socket, empty for a daemon that is reached by TCP or for the default.
	Socket string
	// TCP is host:port, empty for a daemon with a socket.
	TCP string
	// TLS secures a connection by TCP. If nil, whoever reaches the port controls the daemon, and so the machine.
	TLS *tls.Config
}

// defaultSocket is the socket of a daemon that was not configured otherwise.
const defaultSocket = "/var/run/docker.sock"

// ParseAddress parses unix://PATH and tcp://HOST:PORT. With certs, the path of a directory with ca.pem, cert.pem and
// key.pem as the Docker client has it, a connection by TCP is secured: the daemon's certificate is verified, always.
func ParseAddress(text, certs string) (Address, error) {
	if socket, ok := strings.CutPrefix(text, "unix://"); ok && path.IsAbs(socket) {
		return Address{Socket: socket}, nil
	}
	at, ok := strings.CutPrefix(text, "tcp://")
	host, port, err := net.SplitHostPort(at)
	if !ok || err != nil || host == "" || port == "" {
		return Address{}, errors.New("want unix://PATH or tcp://HOST:PORT")
	}
	a := Address{TCP: at}
	if certs == "" {
		return a, nil
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem"))
	if err != nil {
		return Address{}, fmt.Errorf("read the certificate for the Docker daemon: %w", err)
	}
	authority, err := os.ReadFile(filepath.Join(certs, "ca.pem"))
	if err != nil {
		return Address{}, fmt.Errorf("read the authority of the Docker daemon: %w", err)
	}
	a.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host, Certificates: []tls.Certificate{own}, RootCAs: x509.NewCertPool(),
	}
	if !a.TLS.RootCAs.AppendCertsFromPEM(authority) {
		return Address{}, fmt.Errorf("read the authority of the Docker daemon: no certificate in %s",
			filepath.Join(certs, "ca.pem"))
	}
	return a, nil
}

// String returns the path of the socket, or host:port.
func (a Address) String() string {
	switch {
	case a.TCP != "":
		return a.TCP
	case a.Socket != "":
		return a.Socket
	default:
		return defaultSocket
	}
}

// Dial connects to the daemon by dial, to which it gives the network unix or tcp. ctx bounds the handshake, too. The
// caller closes the connection.
func (a Address) Dial(
	ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error),
) (net.Conn, error) {
	if a.TCP == "" {
		return dial(ctx, "unix", a.String())
	}
	conn, err := dial(ctx, "tcp", a.TCP)
	if err != nil || a.TLS == nil {
		return conn, err
	}
	secure := tls.Client(conn, a.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error tells
		return nil, fmt.Errorf("%s: %w", a.TCP, err)
	}
	return secure, nil
}
