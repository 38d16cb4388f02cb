package service

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

func TestStopDoesNotWaitForASilentConnection(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := Track(inner)
	server := grpc.NewServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	conn, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 9)) // the server's settings
	require.NoError(t, err)
	require.ErrorIs(t, Stop(server, ln, func() error { return io.ErrNoProgress }), io.ErrNoProgress)
	require.NoError(t, <-served)
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err)
	require.Empty(t, ln.conns)
}
