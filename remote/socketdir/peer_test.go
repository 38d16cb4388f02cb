package socketdir

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

func TestListenerTurnsAwayOtherUsers(t *testing.T) {
	remotetest.NeedRoot(t)
	dir := remotetest.ShortTemp(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "s")
	refused := make(chan error, 1)
	ln, err := Listen(path, func(err error) { refused <- err })
	require.NoError(t, err)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, fi.Mode())
	require.NoError(t, os.Chmod(path, 0o666))

	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	out, err := remotetest.AsNobody(t, remotetest.Role(t.Context(), "dial", path)).
		CombinedOutput()
		// ends because it was turned away
	require.NoError(t, err, "%s", out)
	require.Empty(t, accepted)
	require.ErrorContains(t, <-refused, "of user 65534")

	conn, err := Connect(t.Context(), path)
	require.NoError(t, err)
	defer conn.Close()
	theirs := <-accepted
	require.NotNil(t, theirs)
	require.NoError(t, theirs.Close())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, ln.Close())
	<-accepted
}
