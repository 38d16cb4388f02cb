package rawssh

import (
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Server runs a script of the test for each connection.
type Server struct {
	Addr    string // host:port
	HostKey ssh.PublicKey
}

// Serve starts a server that runs script for each connection. The end of the test closes the connections and waits for
// the scripts.
func Serve(t testing.TB, script func(*Conn)) *Server {
	t.Helper()
	key, _ := sshtest.NewKey(t)
	addr := sshtest.Listen(t, "tcp", "127.0.0.1:0", func(nc net.Conn) { script(New(nc, key)) })
	return &Server{Addr: addr, HostKey: key.PublicKey()}
}
