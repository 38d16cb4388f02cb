package login_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// config returns how to log in to s.
func config(s *sshtest.Server) *mux.Config {
	return &mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}
}

func dialWith(t testing.TB, s *sshtest.Server, cfg *mux.Config) *mux.Conn {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// newKey returns a key no server knows.
func newKey(t testing.TB) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer, private
}

// requireStage checks that err is a DialError of a stage and whether it says that it is permanent.
func requireStage(t testing.TB, err error, stage string, permanent bool) {
	t.Helper()
	dial := (*mux.DialError)(nil)
	require.ErrorAs(t, err, &dial)
	require.Equal(t, stage, dial.Stage, err.Error())
	require.Equal(t, permanent, dial.Permanent())
	require.ErrorContains(t, err, dial.Addr)
}

// serveAgent serves an ssh-agent on a unix socket.
func serveAgent(t testing.TB, ring agent.Agent) string {
	t.Helper()
	path := filepath.Join(sshtest.SocketDir(t), "agent.sock")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				_ = agent.ServeAgent(ring, nc)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return path
}

func start(t testing.TB, c *mux.Conn, line string) *mux.Process {
	t.Helper()
	p, err := c.Start(sshtest.Within(t), mux.Command{Line: line})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// inBackground runs fn and returns a channel with its error.
func inBackground(fn func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return done
}

// receive returns a value from ch and fails the test when none comes.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(sshtest.Bound)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		require.FailNow(t, "nothing happened")
		panic("unreachable")
	}
}
