package sshtest

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh/agent"
)

// ServeAgent serves an ssh-agent on a unix socket until the test ends, and returns the path of the socket. The test
// fails if a client has not closed its connection by then.
func ServeAgent(t testing.TB, ring agent.Agent) string {
	t.Helper()
	var open atomic.Int32
	path := Listen(t, "unix", filepath.Join(SocketDir(t), "agent.sock"), func(nc net.Conn) {
		open.Add(1)
		defer open.Add(-1)
		_ = agent.ServeAgent(ring, nc) // until the client closes
	})
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return open.Load() == 0 }, Bound, time.Millisecond,
			"a client of the agent keeps its connection")
	})
	return path
}
