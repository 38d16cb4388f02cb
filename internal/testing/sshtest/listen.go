package sshtest

import (
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Listen starts a server that calls serve with each connection, and returns its address. The end of the test closes the
// connections and waits for serve.
func Listen(t testing.TB, network, address string, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen(network, address)
	require.NoError(t, err)
	serveOn(t, ln, serve)
	return ln.Addr().String()
}

// Late returns an address whose connections are refused, as those of a machine that starts, until open is called. Then
// it leads to target, a host:port.
func Late(t testing.TB, target string) (addr string, open func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	bound := os.NewFile(uintptr(fd), "bound")
	t.Cleanup(func() { bound.Close() })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})) // it has a port, and refuses
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	at, ok := name.(*unix.SockaddrInet4)
	require.True(t, ok)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port)), sync.OnceFunc(func() {
		require.NoError(t, unix.Listen(fd, unix.SOMAXCONN))
		ln, err := net.FileListener(bound)
		require.NoError(t, err)
		serveOn(t, ln, func(nc net.Conn) {
			to, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			defer to.Close()
			var back sync.WaitGroup
			back.Go(func() {
				_, _ = io.Copy(nc, to) // either end may be closed
				nc.Close()
			})
			_, _ = io.Copy(to, nc)
			to.Close()
			back.Wait()
		})
	})
}

// serveOn calls serve with each connection of ln, until the end of the test.
func serveOn(t testing.TB, ln net.Listener, serve func(net.Conn)) {
	t.Helper()
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
}
