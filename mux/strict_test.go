package mux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/rawssh"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

//stepmux:faults vulnerabilities | Messages removed at the beginning of a connection (CVE-2023-48795) | the strict key
//stepmux:more exchange is asked for, and kept where the server knows it; `stepmux doctor` warns of servers that do not
//stepmux:with instance/doctor.TestJudgeServer
func TestStrictKeyExchangeIsAskedForAndKept(t *testing.T) {
	// A man in the middle can add messages before the keys are exchanged. That shifts the sequence numbers, and hides
	// that he removes the first messages after that (CVE-2023-48795).
	for _, strict := range []bool{true, false} {
		offered := make(chan []string, 1)
		server := rawssh.Serve(t, func(c *rawssh.Conn) {
			c.NoStrictKex = !strict
			if c.Versions("SSH-2.0-rawssh") != nil {
				return
			}
			err := c.ExchangeAfter([]byte{rawssh.Ignore, 0, 0, 0, 0})
			offered <- c.ClientKex()
			if err == nil && c.Login() == nil {
				_, _ = c.Read()
			}
		})
		conn, err := mux.Dial(sshtest.Within(t), server.Addr, rawConfig(t, server))
		require.Contains(t, receive(t, offered), "kex-strict-c-v00@openssh.com")
		if strict {
			requireStage(t, err, "handshake", false)
			continue
		}
		require.NoError(t, err, "where a server is not strict, it may say so")
		requireCloses(t, conn)
	}
}
