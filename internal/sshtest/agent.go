package sshtest

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh/agent"
)

// ServeAgent serves an ssh-agent on a unix socket until the test ends, and returns the path of the socket.
func ServeAgent(t testing.TB, ring agent.Agent) string {
	t.Helper()
	return Listen(t, "unix", filepath.Join(SocketDir(t), "agent.sock"), func(nc net.Conn) {
		_ = agent.ServeAgent(ring, nc) // until the client closes
	})
}
