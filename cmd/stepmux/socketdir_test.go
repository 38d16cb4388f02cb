package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/control"
)

// Another user could make the directory of this user's manager in /tmp, and take its socket, and so the jobs that were
// submitted there, with their variables.
func TestASocketInADirectoryOfOthersIsNotUsed(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", t.TempDir())
	dir := control.Dir()
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	socket := filepath.Join(dir, "manager.socket")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	saying(func(net.Conn) {})(t, listener)

	const why = "is not a directory of this user's with mode 0700"
	_, err = (&managerFlag{}).dial(t.Context(), socket)
	require.ErrorContains(t, err, why)
	require.ErrorContains(t, makeSocketDir(socket), why)
	_, err = control.Find()
	require.ErrorContains(t, err, why)

	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, makeSocketDir(socket))
	conn, err := (&managerFlag{}).dial(t.Context(), socket)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
