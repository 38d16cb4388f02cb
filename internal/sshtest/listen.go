package sshtest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Listen starts a server that calls serve with each connection, and returns its address. The end of the test closes the
// connections and waits for serve.
func Listen(t testing.TB, network, address string, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen(network, address)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { nc.Close() })()
				defer nc.Close()
				serve(nc)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		cancel()
		wg.Wait()
	})
	return ln.Addr().String()
}
