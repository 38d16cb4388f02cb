package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptoms: doctor advised keys of sshd_config where no OpenSSH runs. TinySSH's answer to a keepalive ended the
// connection, and its refusal of a second session looked like an account that may not run commands.
func TestServersThatAreNoOpenSSHAreExplained(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *sshtest.Server{
		"dropbear": sshtest.Dropbear, "TinySSH": sshtest.TinySSH,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := examine(t, instanceOf(t, start(t)))
			require.True(t, r.Usable)
			requireFinding(t, r, checkKeepalive, OK, "^answered in")
			requireFinding(t, r, checkShell, OK, "^starts a command")
			requireFinding(t, r, checkRelay, OK, "^runs")
			f := requireFinding(t, r, checkStreamlocal, Warn, "^not allowed; the relay carries")
			require.Contains(t, f.Change, "forwards to unix sockets, such as OpenSSH")
			if name == "TinySSH" {
				f = requireFinding(t, r, checkSessions, Warn, "^1 in the life of a connection; the relay takes it")
				require.Contains(t, f.Change, "more sessions on a connection")
			}
			for _, f := range r.Findings {
				require.NotRegexp(t, "sshd_config|MaxSessions", f.Detail+f.Change)
			}
		})
	}
}
