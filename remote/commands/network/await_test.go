package network

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// reservePort returns a socket that has a port, which no other process can take meanwhile, and its address. Nobody
// listens.
func reservePort(t *testing.T) (fd int, addr string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

func TestAwaitPortsEndsWhenAllPortsAcceptConnections(t *testing.T) {
	early, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer early.Close()
	fd, late := reservePort(t)
	done := make(chan error, 1)
	go func() { done <- awaitPorts(t.Context(), []string{early.Addr().String(), late}) }()
	conn, err := early.Accept() // it has begun
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, unix.Listen(fd, 1))
	require.NoError(t, <-done)
}

func TestAwaitPortsEndsWithItsContextAndReportsTheLastError(t *testing.T) {
	_, refuses := reservePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200e6)
	defer cancel()
	err := awaitPorts(ctx, []string{refuses})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
