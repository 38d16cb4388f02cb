package rawssh

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
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
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards the following
		open = map[net.Conn]bool{}
		over bool
	)
	serve := func(nc net.Conn) {
		defer nc.Close()
		mu.Lock()
		if over {
			mu.Unlock()
			return
		}
		open[nc] = true
		mu.Unlock()
		script(New(nc, key))
		mu.Lock()
		delete(open, nc)
		mu.Unlock()
	}
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(nc) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		over = true
		for nc := range open {
			nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return &Server{Addr: ln.Addr().String(), HostKey: key.PublicKey()}
}
