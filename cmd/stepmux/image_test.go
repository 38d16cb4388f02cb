package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/sshtest"
)

func TestADaemonsSocketThatWeMayNotOpenNamesItsGroup(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may open all sockets")
	}
	socket := filepath.Join(sshtest.SocketDir(t), "docker.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	require.NoError(t, os.Chmod(socket, 0))
	require.ErrorContains(t, checkSocket(socket), "permission denied (its group may open it: "+groupOf(socket)+"; ")
	require.NotEqual(t, "unknown", groupOf(socket))
}
