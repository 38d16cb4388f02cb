package mux_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// Symptom: TinySSH's legal answer to a keepalive, SSH_MSG_UNIMPLEMENTED, ended the connection with "unexpected message
// type 3".
//
//stepmux:faults users | A legal answer to a keepalive ends the connection; advice for OpenSSH on servers that are none
//stepmux:with instance/doctor.TestServersThatAreNoOpenSSHAreExplained
func TestAServerWithoutGlobalRequestsAnswersKeepalives(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *sshtest.Server{
		"dropbear": sshtest.Dropbear, "TinySSH": sshtest.TinySSH,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			conn := dial(t, s)
			p, err := conn.Start(sshtest.Within(t), mux.Command{Argv: []string{"cat"}})
			require.NoError(t, err)
			for range 3 {
				rtt, err := conn.Ping(sshtest.Within(t))
				require.NoError(t, err)
				require.Positive(t, rtt)
			}
			if name == "TinySSH" {
				_, err = conn.Start(sshtest.Within(t), mux.Command{Argv: []string{"true"}})
				require.ErrorIs(t, err, mux.ErrForbidden)
				require.ErrorContains(t, err, "the server allows one session on each connection")
			}
			_, err = p.Write([]byte("still here"))
			require.NoError(t, err)
			require.NoError(t, p.CloseWrite())
			out, err := io.ReadAll(p)
			require.NoError(t, err)
			require.Equal(t, "still here", string(out))
		})
	}
}
