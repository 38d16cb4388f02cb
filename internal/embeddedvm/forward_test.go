package embeddedvm_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// socket is a TCP or Unix connection, or a channel to one.
type socket interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// onBothNetworks runs a test against a server on a Unix socket and on a TCP port, over both kinds of SSH server.
func onBothNetworks(t *testing.T, serve func(net.Conn), test func(t *testing.T, far socket)) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		for network, address := range map[string]string{
			"unix": filepath.Join(sshtest.SocketDir(t), "sock"),
			"tcp":  "127.0.0.1:0",
		} {
			t.Run(network, func(t *testing.T) {
				addr := sshtest.Listen(t, network, address, serve)
				nc, err := client.Dial(network, addr)
				require.NoError(t, err)
				t.Cleanup(func() { _ = nc.Close() })
				far, ok := nc.(socket)
				require.True(t, ok)
				test(t, far)
			})
		}
	})
}

func TestSocketChannelKeepsReadingAfterHalfClose(t *testing.T) {
	onBothNetworks(t, func(near net.Conn) {
		all, _ := io.ReadAll(near) // until the client's half-close
		_, _ = near.Write(all)
	}, func(t *testing.T, far socket) {
		sent := make([]byte, 5<<20)
		_, _ = rand.Read(sent)
		_, err := far.Write(sent)
		require.NoError(t, err)
		require.NoError(t, far.CloseWrite())
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got))
	})
}

func TestSocketChannelKeepsWritingAfterThePeersHalfClose(t *testing.T) {
	got := make(chan string, 1)
	onBothNetworks(t, func(near net.Conn) {
		_ = near.(socket).CloseWrite()
		all, _ := io.ReadAll(near)
		got <- string(all)
	}, func(t *testing.T, far socket) {
		n, err := far.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, n)
		_, err = far.Write([]byte("still here"))
		require.NoError(t, err)
		require.NoError(t, far.CloseWrite())
		require.Equal(t, "still here", <-got)
	})
}

func TestClosedSocketChannelClosesTheSocket(t *testing.T) {
	ended := make(chan string, 1)
	onBothNetworks(t, func(near net.Conn) {
		all, _ := io.ReadAll(near)
		ended <- string(all)
		_, _ = io.Copy(near, endless{}) // until it is refused
		ended <- "refused"
	}, func(t *testing.T, far socket) {
		_, err := far.Write([]byte("last words"))
		require.NoError(t, err)
		require.NoError(t, far.Close())
		require.Equal(t, "last words", <-ended)
		require.Equal(t, "refused", <-ended)
	})
}

// endless reads zeros for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAbsentTargetsAreRefusedLikeSaturation(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		_, err := client.Dial("unix", filepath.Join(t.TempDir(), "none"))
		requireReason(t, err, ssh.ConnectionFailed)
		_, err = client.Dial("unix", "/"+strings.Repeat("x", 200)) // more than a socket's path may have
		requireReason(t, err, ssh.ConnectionFailed)
	})
}

func TestSocketChannelsAreNoSessions(t *testing.T) {
	onBoth(t, embeddedvm.Config{MaxSessions: 1}, []string{"MaxSessions 1"}, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		start(t, client, "cat")
		addr := sshtest.Listen(t, "unix", filepath.Join(sshtest.SocketDir(t), "sock"), func(near net.Conn) {
			_, _ = near.Write([]byte("hello"))
		})
		far, err := client.Dial("unix", addr)
		require.NoError(t, err)
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		require.NoError(t, far.Close())
	})
}
