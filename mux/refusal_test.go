package mux_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Symptom: on a loaded VM with MaxSessions 2, a build failed with "the server allows 0 sessions on a connection". sshd
// frees a session some time after its close. So builds that took turns were each refused once for the sessions of the
// build before, and the refusals of one build counted as one long refusal.
func TestCallersThatTakeTurnsOnAServerThatIsSlowToFreeSessionsAllGetThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialSlowToFree(t, 2, time.Second)
		errs := make(chan error, 12)
		for range cap(errs) {
			go func() {
				both, err := conn.Reserve(t.Context(), 2)
				if err == nil {
					both.Release()
				}
				errs <- err
			}()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		_, err := conn.Reserve(t.Context(), 3)
		require.ErrorIs(t, err, mux.ErrForbidden, "more than the server ever allows")
	})
}

// dialSlowToFree connects to a server in the test's bubble. It allows so many sessions, and frees each that long after
// its close.
func dialSlowToFree(t *testing.T, sessions int64, after time.Duration) *mux.Conn {
	t.Helper()
	key, _ := sshtest.NewKey(t)
	ours, far := net.Pipe()
	theirs := faultconn.New(far, faultconn.Config{}) // its writes do not wait: both ends of SSH begin with one
	var wg sync.WaitGroup
	wg.Go(func() {
		defer theirs.Close()
		cfg := &ssh.ServerConfig{NoClientAuth: true}
		cfg.AddHostKey(key)
		server, opens, requests, err := ssh.NewServerConn(theirs, cfg)
		if err != nil {
			return // the dial fails
		}
		defer server.Close()
		wg.Go(func() { ssh.DiscardRequests(requests) })
		var open atomic.Int64
		for o := range opens {
			if open.Add(1) > sessions {
				open.Add(-1)
				_ = o.Reject(ssh.ConnectionFailed, "open failed")
				continue
			}
			_, asked, err := o.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				ssh.DiscardRequests(asked) // until the close
				timer := time.NewTimer(after)
				<-timer.C
				open.Add(-1)
			})
		}
	})
	conn, err := mux.Dial(t.Context(), "vm:22", &mux.Config{
		User:     "any",
		Auth:     []login.Auth{login.Key("of the test", key)},
		HostKeys: login.PinnedHostKeys(key.PublicKey()),
		DialNet:  func(context.Context, string) (net.Conn, error) { return ours, nil },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return conn
}
