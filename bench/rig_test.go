package bench

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/mux/relay"
)

// vm is the machine under test: a real sshd, and a directory for temporary files.
type vm struct {
	*sshtest.Server
	tmp string
}

// newVM starts a VM with stock limits and lines of sshd_config.
func newVM(b *testing.B, lines ...string) *vm {
	b.Helper()
	return &vm{sshtest.OpenSSH(b, lines...), sshtest.SocketDir(b)}
}

// at returns the VM as seen from so far away.
func (v *vm) at(b *testing.B, rtt time.Duration) *vm {
	b.Helper()
	if rtt == 0 {
		return v
	}
	proxy := sshtest.ProxyOver(b, v.Addr, faultconn.Config{Delay: rtt / 2})
	return &vm{v.Via(b, proxy.Addr()), v.tmp}
}

// muxConfig says how to log in to the VM.
func (v *vm) muxConfig() *mux.Config {
	return &mux.Config{
		User:     v.User,
		Auth:     []login.Auth{login.Key("of the benchmark", v.Signer)},
		HostKeys: login.PinnedHostKeys(v.HostKey),
	}
}

// dial returns a new connection to the VM, on which a command has run: only then sshd sends small packets
// at once.
func (v *vm) dial(b *testing.B) *mux.Conn {
	b.Helper()
	conn, err := mux.Dial(b.Context(), v.Addr, v.muxConfig())
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	p, err := conn.Start(b.Context(), mux.Command{Argv: []string{"true"}})
	require.NoError(b, err)
	require.NoError(b, p.Wait(b.Context()))
	return conn
}

// relay returns the relay of conn.
func (v *vm) relay(b *testing.B, conn *mux.Conn) *relay.Relay {
	b.Helper()
	r, err := conn.Relay(b.Context(), mux.Command{Argv: []string{stepmux(b), "steps", "relay", "--temp-dir", v.tmp}})
	require.NoError(b, err)
	return r
}

// client returns a client of the SSH library itself, on which a command has run.
func (v *vm) client(b *testing.B) *ssh.Client {
	b.Helper()
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	require.NoError(b, err)
	b.Cleanup(func() { client.Close() })
	session, err := client.NewSession()
	require.NoError(b, err)
	require.NoError(b, session.Run("true"))
	return client
}

// firstByte waits for a byte and returns the time since begin, in microseconds.
func firstByte(from io.Reader, begin time.Time) (float64, error) {
	_, err := io.ReadFull(from, make([]byte, 1))
	return micros(time.Since(begin)), err
}
