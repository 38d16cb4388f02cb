package mux_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// notes are the events that a Trace got.
type notes struct {
	mu  sync.Mutex // guards the following
	all []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

// await waits for a note, and forgets it and all before it.
func (n *notes) await(t testing.TB, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		i := slices.Index(n.all, want)
		if i >= 0 {
			n.all = n.all[i+1:]
		}
		return i >= 0
	}, sshtest.Bound, time.Millisecond, "no note %q", want)
}

func (n *notes) trace() *mux.Trace {
	verdict := func(err error) string {
		if err != nil {
			return "failed"
		}
		return "ok"
	}
	return &mux.Trace{
		DialPhase:    func(phase string, _ time.Duration, err error) { n.add("%s %s", phase, verdict(err)) },
		HostKey:      func(key ssh.PublicKey, by string, err error) { n.add("%s %s %s", key.Type(), by, verdict(err)) },
		ChannelOpen:  func(kind mux.ChannelKind, _ time.Duration, err error) { n.add("open %s %s", kind, verdict(err)) },
		ChannelClose: func(kind mux.ChannelKind) { n.add("close %s", kind) },
		Refused:      func() { n.add("refused") },
		Keepalive:    func(rtt time.Duration) { n.add("keepalive %v", rtt > 0) },
		Close:        func(cause error) { n.add("closed: %v", cause) },
	}
}

func TestTraceGetsEveryEvent(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxSessions 1")
	n := &notes{}
	cfg := config(s)
	cfg.Trace = n.trace()
	conn := dialWith(t, s, cfg)
	require.Equal(t, []string{"prepare ok", "connect ok", "ssh-ed25519 pinned ok", "handshake ok", "login ok"}, n.all)

	p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.NoError(t, err)
	n.await(t, "open session ok")
	_, err = conn.TryStart(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.ErrorIs(t, err, mux.ErrSaturated)
	n.await(t, "open session failed")
	n.await(t, "refused")
	p.Close()
	n.await(t, "close session")

	_, err = conn.DialUnix(sshtest.Within(t), "/no/such/socket")
	require.Error(t, err)
	n.await(t, "open streamlocal failed")
	stream, err := conn.Dial(sshtest.Within(t), "tcp", s.Addr)
	require.NoError(t, err)
	n.await(t, "open tcp ok")
	stream.Close()
	n.await(t, "close tcp")

	r := relayOf(t, conn)
	n.await(t, "open session ok")
	p, err = r.Start(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.NoError(t, err)
	n.await(t, "open relay ok")
	p.Close()
	n.await(t, "close relay")

	rtt, err := conn.Ping(sshtest.Within(t))
	require.NoError(t, err)
	require.Positive(t, rtt)
	n.await(t, "keepalive true")
	require.NoError(t, conn.Close())
	n.await(t, "closed: connection closed by this side")
	_, err = conn.Ping(sshtest.Within(t))
	require.ErrorIs(t, err, mux.ErrClosed)
}

func TestTraceGetsTheReasonOfAFailedDial(t *testing.T) {
	s, other := sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	for want, change := range map[string]func(*mux.Config){
		"prepare ok, connect ok, ssh-ed25519  failed, handshake failed": func(c *mux.Config) {
			c.HostKeys = login.PinnedHostKeys(other.HostKey)
		},
		"prepare ok, connect ok, ssh-ed25519 pinned ok, handshake ok, login failed": func(c *mux.Config) {
			c.Auth = []login.Auth{login.Key("of a stranger", other.Signer)}
		},
	} {
		n := &notes{}
		cfg := config(s)
		cfg.Trace = n.trace()
		change(cfg)
		_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
		require.Error(t, err)
		require.Equal(t, want, strings.Join(n.all, ", "))
	}
}

func TestTraceGetsTheDeathOfAConnection(t *testing.T) {
	s := sshtest.OpenSSH(t)
	proxy := sshtest.Proxy(t, s.Addr)
	n := &notes{}
	cfg := config(s)
	died := make(chan error, 1)
	cfg.Trace = n.trace()
	cfg.Trace.Close = func(cause error) { died <- cause }
	conn := dialWith(t, s.Via(t, proxy.Addr()), cfg)
	s.Stop()
	lost := (*mux.ConnError)(nil)
	require.True(t, errors.As(<-died, &lost))
	<-conn.Done()
}

func TestCountSessionsFindsTheServersLimit(t *testing.T) {
	for name, test := range map[string]struct {
		line    string
		opened  int
		refused bool
	}{
		"stock":   {"MaxSessions 10", 10, true},
		"few":     {"MaxSessions 2", 2, true},
		"none":    {"MaxSessions 0", 0, true},
		"plenty":  {"MaxSessions 50", 12, false},
		"just so": {"MaxSessions 12", 12, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, sshtest.OpenSSH(t, test.line))
			opened, refused, err := conn.CountSessions(sshtest.Within(t), 12)
			require.NoError(t, err)
			require.Equal(t, test.opened, opened)
			require.Equal(t, test.refused, refused)
			require.Zero(t, conn.Stat().Sessions.Limit, "the budget has learned nothing")
			require.NoError(t, conn.Close())
			_, _, err = conn.CountSessions(sshtest.Within(t), 12)
			require.ErrorIs(t, err, mux.ErrClosed)
		})
	}
}
