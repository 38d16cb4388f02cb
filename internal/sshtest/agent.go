package sshtest

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh/agent"
)

// ServeAgent serves an ssh-agent on a unix socket until the test ends, and returns the path of the socket.
func ServeAgent(t testing.TB, ring agent.Agent) string {
	t.Helper()
	path := filepath.Join(SocketDir(t), "agent.sock")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				_ = agent.ServeAgent(ring, nc)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return path
}
