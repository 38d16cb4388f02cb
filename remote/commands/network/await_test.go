package network

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAwaitPortsEndsWhenAllPortsAcceptConnections(t *testing.T) {
	early, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer early.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	late := free.Addr().String()
	require.NoError(t, free.Close())
	done := make(chan error, 1)
	go func() { done <- awaitPorts(t.Context(), []string{early.Addr().String(), late}) }()
	conn, err := early.Accept() // it has begun
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	again, err := net.Listen("tcp", late)
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, <-done)
}

func TestAwaitPortsEndsWithItsContextAndTellsTheLastError(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 200e6)
	defer cancel()
	err = awaitPorts(ctx, []string{free.Addr().String()})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
