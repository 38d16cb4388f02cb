package connector_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// slowConn is a connection whose sessions are there a moment after the build's end.
type slowConn struct {
	connector.Conn
	asked, closed chan struct{}
	once          sync.Once
}

func (c *slowConn) Reserve(ctx context.Context, n int) (*mux.Reservation, error) {
	c.once.Do(func() { close(c.asked) })
	<-ctx.Done()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-c.closed:
	case <-timer.C: // Close waits
	}
	return c.Conn.Reserve(context.WithoutCancel(ctx), n)
}

// slowLease is a share of a connection that is slow in some way.
type slowLease struct {
	lease
	slow connector.Conn
}

func (l *slowLease) Conn() connector.Conn { return l.slow }

// A link that was made while the build ended stayed, and kept the connection of its VM open for good.
func TestALinkThatIsMadeAtTheEndOfABuildIsGivenUp(t *testing.T) {
	server := embedded(t)
	second := &slowLease{}
	second.conn = connect(t, server)
	slow := &slowConn{Conn: second.conn, asked: make(chan struct{}), closed: make(chan struct{})}
	second.slow = slow
	b := newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
		cfg.Route, cfg.Linger, cfg.StopTimeout = connector.Session, 10*time.Second, 2*time.Second
		cfg.Reconnect = func(context.Context) (connector.Lease, error) { return second, nil }
	})
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, b.lease.conn.Close())
	select {
	case <-slow.asked:
	case <-sshtest.Within(t).Done():
		t.Fatal("no second link is made")
	}
	_ = b.Close(sshtest.Within(t)) // it does not reach the step runner
	released := second.released.Load()
	close(slow.closed)
	require.Positive(t, b.lease.released.Load())
	require.Positive(t, released)
	require.Eventually(t, func() bool { return second.conn.Stat().Sessions.Taken == 0 }, sshtest.Bound, time.Millisecond)
}

// A manager that was shut down while it came back to a build could end that. And a build was lost if its VM had been
// given another directory for temporary files before its manager came back.
func TestABuildThatIsLeftBeforeTheConnectGoesOn(t *testing.T) {
	server := embedded(t)
	route := connector.Auto
	attach := func(socket string) *build { // each with a TempDir and a VM of its own
		return newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
			cfg.Route, cfg.Linger, cfg.Secret, cfg.Attach = route, time.Minute, strings.Repeat("s", 43), socket
			cfg.Reconnect = func(context.Context) (connector.Lease, error) { return &lease{conn: connect(t, server)}, nil }
		})
	}
	first := attach("")
	_, err := first.Connect(sshtest.Within(t))
	require.NoError(t, err)
	socket := first.Socket()
	first.Leave()
	require.NoError(t, first.Close(sshtest.Within(t)))

	second := attach(socket)
	second.Leave()
	_, err = second.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, second.Close(sshtest.Within(t)))

	for _, route = range []connector.Route{connector.Auto, connector.Relay, connector.Session, connector.Streamlocal} {
		next := attach(socket)
		dial, err := next.Connect(sshtest.Within(t))
		require.NoError(t, err, route)
		bridge, err := dial()
		require.NoError(t, err, route)
		_, err = io.ReadFull(bridge, make([]byte, 1)) // serve's gRPC server sends first
		require.NoError(t, err, route)
		next.Leave()
		require.NoError(t, next.Close(sshtest.Within(t)))
	}

	third := attach(socket)
	_, err = third.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, third.Close(sshtest.Within(t)))
	require.Empty(t, third.Left())
}

// mortal returns a step runner that lingers, whose serve ends as soon as it is ready.
func mortal(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runner.sh")
	require.NoError(t, os.WriteFile(path, []byte(`#!/bin/sh
if [ "$1" = --version ]; then
	printf 'Version: 1\nName: stepmux\nProtocol: 1\nFeatures: linger\nOS/Arch: linux/amd64\n'; exit
fi
case $2 in
serve) echo "step-runner is listening on socket $4" >&2; exit;;
proxy) echo "nobody listens" >&2; exit 4;;
esac
`), 0o700))
	return path
}

// lingers returns a build that lingers, over the same connection each time.
func lingers(t *testing.T, runner string, l connector.Lease, change func(*connector.Config)) *build {
	t.Helper()
	return newBuild(t, embedded(t), "b1", runner, func(cfg *connector.Config) {
		cfg.Linger, cfg.StopTimeout, cfg.Lease = 3*time.Second, time.Second, l
		cfg.Reconnect = func(context.Context) (connector.Lease, error) { return l, nil }
		change(cfg)
	})
}

// slowSessions is a connection that needs a while to reserve sessions.
type slowSessions struct{ connector.Conn }

func (c slowSessions) Reserve(ctx context.Context, n int) (*mux.Reservation, error) {
	_ = pause.For(ctx, 100*time.Millisecond) // a round trip
	return c.Conn.Reserve(ctx, n)
}

// Symptom: the client of the first attempt opened a bridge while there was no build, and the manager panicked.
func TestAStepRunnerThatDiesBeforeItIsAttachedToIsStartedAgain(t *testing.T) {
	l := &slowLease{slow: slowSessions{connect(t, embedded(t))}}
	starts := 0
	b := lingers(t, mortal(t), l, func(cfg *connector.Config) {
		cfg.Route = connector.Session
		cfg.Trace = &connector.Trace{ServeReady: func(string, connector.Route, time.Duration) { starts++ }}
	})
	_, err := b.Connect(sshtest.Within(t))
	require.Error(t, err)
	_ = b.Close(sshtest.Within(t))
	require.Greater(t, starts, 1)
}

// Symptom: while another lease was awaited, the client looked for the step runner again, and the build was lost.
func TestAStepRunnerThatDiesBeforeItIsAttachedToIsStartedAgainHoweverLongThatTakes(t *testing.T) {
	l := &slowLease{slow: connect(t, embedded(t))}
	starts := 0
	b := lingers(t, mortal(t), l, func(cfg *connector.Config) {
		cfg.Route = connector.Session
		cfg.Trace = &connector.Trace{ServeReady: func(string, connector.Route, time.Duration) { starts++ }}
		cfg.Reconnect = func(ctx context.Context) (connector.Lease, error) {
			return l, pause.For(ctx, 500*time.Millisecond) // the client tries again meanwhile
		}
	})
	_, err := b.Connect(sshtest.Within(t))
	require.Error(t, err)
	_ = b.Close(sshtest.Within(t))
	require.Greater(t, starts, 1)
}

// Symptom: a manager that was held up after its Connect took the build from the one that had attached meanwhile, or
// ended it.
func TestAManagerThatHasNotCalledYetIsReplaced(t *testing.T) {
	server := embedded(t)
	attach := func(socket string) *build {
		return newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
			cfg.Route, cfg.Linger, cfg.Secret, cfg.Attach = connector.Auto, time.Minute, strings.Repeat("s", 43), socket
			cfg.Reconnect = func(context.Context) (connector.Lease, error) { return &lease{conn: connect(t, server)}, nil }
		})
	}
	first := attach("")
	_, err := first.Connect(sshtest.Within(t))
	require.NoError(t, err)
	second := attach(first.Socket())
	_, err = second.Connect(sshtest.Within(t))
	require.NoError(t, err)
	_, err = first.Execute(sshtest.Within(t), connector.Job{Job: &stepmuxv1.Job{Script: "exit 1"}}, io.Discard)
	require.ErrorContains(t, err, "another manager has attached")
	require.NoError(t, first.Close(sshtest.Within(t)))
	result, err := second.Execute(sshtest.Within(t), connector.Job{Job: &stepmuxv1.Job{Script: "true"}}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status)
	require.NoError(t, second.Close(sshtest.Within(t)))
}

// silentSockets is a connection on which no socket answers.
type silentSockets struct{ connector.Conn }

func (silentSockets) DialUnix(ctx context.Context, _ string) (*mux.Stream, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Symptom: there was no client yet to end the step runner with, and the manager panicked.
func TestABuildThatLingersIsCanceledWhileItsStepRunnerIsProbed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := &slowLease{slow: silentSockets{connect(t, embedded(t))}}
	b := lingers(t, mortal(t), l, func(cfg *connector.Config) {
		cfg.Route = connector.Auto
		cfg.Trace = &connector.Trace{ServeReady: func(string, connector.Route, time.Duration) {
			time.AfterFunc(10*time.Millisecond, cancel)
		}}
	})
	_, err := b.Connect(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, b.Close(sshtest.Within(t)))
	require.NotEmpty(t, b.Left(), "the step runner could not be reached")
}

// lossyConn is a connection that is lost as soon as it has a session for a step runner.
type lossyConn struct {
	connector.Conn
	lose func()
}

func (c *lossyConn) Reserve(ctx context.Context, n int) (*mux.Reservation, error) {
	r, err := c.Conn.Reserve(ctx, n)
	c.lose()
	return r, err
}

// Symptom: the report of such a build told of nothing that may be left on the VM.
func TestAStepRunnerWhoseStartGotNoAnswerMayBeLeft(t *testing.T) {
	for name, linger := range map[string]time.Duration{
		"without linger": 0, "not reached again": time.Minute, "lost again": 100 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			s := embedded(t)
			proxy := sshtest.Proxy(t, s.Addr)
			l := &slowLease{slow: &lossyConn{connect(t, s.Via(t, proxy.Addr())), proxy.Cut}}
			b := lingers(t, mortal(t), l, func(cfg *connector.Config) {
				cfg.Route, cfg.Linger = connector.Session, linger
				if linger == time.Minute {
					cfg.Reconnect = func(context.Context) (connector.Lease, error) { return nil, io.EOF }
				}
			})
			_, err := b.Connect(sshtest.Within(t))
			require.True(t, mux.IsLost(err), "%v", err)
			require.NoError(t, b.Close(sshtest.Within(t)))
			require.Len(t, b.Left(), 1)
			require.Contains(t, b.Left()[0], "unknown: the connection was lost")
		})
	}
}

// Symptom: a relay that cannot start was started a hundred times a second, until the linger was over.
func TestARelayThatCannotStartFailsABuildThatLingersAtOnce(t *testing.T) {
	tries := 0
	l := &slowLease{slow: connect(t, embedded(t))}
	b := lingers(t, "/nonexistent/stepmux", l, func(cfg *connector.Config) {
		cfg.Route = connector.Relay
		cfg.Reconnect = func(context.Context) (connector.Lease, error) { tries++; return l, nil }
	})
	_, err := b.Connect(sshtest.Within(t))
	failed := (*relay.Error)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 127, failed.ExitCode)
	require.Zero(t, tries)
}
