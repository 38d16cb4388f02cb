package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// leftBy returns End's list of the remains of the build with this socket.
func leftBy(ctx context.Context, t *testing.T, socket string) []string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, End(ctx, &out, socket))
	var left []string
	require.NoError(t, json.Unmarshal(out.Bytes(), &left))
	return left
}

func TestEndOfABuildThatIsGoneLeavesNothing(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "b1")
	require.Empty(t, leftBy(t.Context(), t, socket))
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o700)) // as a serve that was killed leaves it
	require.Empty(t, leftBy(t.Context(), t, socket))
	remotetest.RequireGone(t, filepath.Dir(socket))
}

func TestEndTouchesOnlyServesAndReportsTheDirectory(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "b1")
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	lock, err := filelock.Claim(filepath.Dir(socket))
	require.NoError(t, err)
	defer filelock.Release(lock)
	listener, err := net.Listen("unix", socket) // this process, which goes on
	require.NoError(t, err)
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.Equal(t, []string{"directory " + filepath.Dir(socket)}, leftBy(ctx, t, socket))
}

func TestEndRefusesOtherPaths(t *testing.T) {
	for _, path := range []string{"", "-", "relative", "/tmp/x.sock", "/tmp/other/b1/step-runner.sock"} {
		var out bytes.Buffer
		require.Error(t, End(t.Context(), &out, path), path)
		require.Empty(t, out.String())
	}
}
