package login_test

import (
	"crypto/rand"
	"crypto/rsa"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// config returns a Config that logs in to s.
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

// rsaKey returns one key for all tests: to find a new one takes seconds under the race detector.
func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := newRSAKey()
	require.NoError(t, err)
	return key
}

var newRSAKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// requireStage checks the stage of a DialError and whether it is permanent.
func requireStage(t testing.TB, err error, stage string, permanent bool) {
	t.Helper()
	dial := (*mux.DialError)(nil)
	require.ErrorAs(t, err, &dial)
	require.Equal(t, stage, dial.Stage, err.Error())
	require.Equal(t, permanent, dial.Permanent())
	require.ErrorContains(t, err, dial.Addr)
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

// receive returns a value from ch. The test fails if no value comes in time.
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
