package rawssh_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/rawssh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAClientLogsInAndReadsMessages(t *testing.T) {
	for _, strict := range []bool{true, false} {
		server := rawssh.Serve(t, func(c *rawssh.Conn) {
			c.NoStrictKex = !strict
			c.Each(func(message []byte) error {
				if message[0] != rawssh.GlobalRequest {
					return nil
				}
				return c.Write(append([]byte{rawssh.RequestSuccess}, "hello"...))
			})
		})
		client, err := ssh.Dial(
			"tcp", server.Addr, &ssh.ClientConfig{User: "any", HostKeyCallback: ssh.FixedHostKey(server.HostKey)},
		)
		require.NoError(t, err)
		ok, answer, err := client.SendRequest("anything", true, nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "hello", string(answer))
		require.NoError(t, client.Close())
	}
}

func TestTheServerEndsWithTheTest(t *testing.T) {
	ended := make(chan error, 1)
	t.Run("inner", func(t *testing.T) {
		reached := make(chan struct{})
		server := rawssh.Serve(t, func(c *rawssh.Conn) {
			err := c.Handshake()
			close(reached)
			for err == nil {
				_, err = c.Read()
			}
			ended <- err
		})
		client, err := ssh.Dial(
			"tcp", server.Addr, &ssh.ClientConfig{User: "any", HostKeyCallback: ssh.FixedHostKey(server.HostKey)},
		)
		require.NoError(t, err)
		<-reached
		t.Cleanup(func() { client.Close() }) // called before the server's
	})
	require.Error(t, <-ended)
}
