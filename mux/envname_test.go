package mux_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// Of a variable that a login shell cannot set, bash left out the variable, and dash failed as if the command had ended
// with exit status 2.
func TestAVariableThatALoginShellCannotSetIsRefused(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		for _, entry := range []string{"A-B=1", "1A=1", "A.B=1", "Ä=1", "A B=1"} {
			_, err := conn.Start(sshtest.Within(t), mux.Command{Line: "env", Env: []string{"A_C1=2", entry}})
			require.ErrorContains(t, err, "a login shell cannot set")
		}
		p, err := conn.Start(sshtest.Within(t), mux.Command{Line: `echo "$A_C1$_b"`, Env: []string{"A_C1=2", "_b=-3"}})
		require.NoError(t, err)
		out, err := io.ReadAll(p)
		require.NoError(t, err)
		require.Equal(t, "2-3\n", string(out))
		require.NoError(t, p.Wait(sshtest.Within(t)))
	})
}
