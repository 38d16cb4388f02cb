package connector_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/mux"
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

// slowLease is a share of it.
type slowLease struct {
	lease
	slow *slowConn
}

func (l *slowLease) Conn() connector.Conn { return l.slow }

// A link that was made while the build ended stayed, and kept the connection of its VM open for good.
func TestALinkThatIsMadeAtTheEndOfABuildIsGivenUp(t *testing.T) {
	server := embedded(t)
	second := &slowLease{}
	second.conn = connect(t, server)
	second.slow = &slowConn{Conn: second.conn, asked: make(chan struct{}), closed: make(chan struct{})}
	b := newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
		cfg.Route, cfg.Linger, cfg.StopTimeout = connector.Session, 10*time.Second, 2*time.Second
		cfg.Reconnect = func(context.Context) (connector.Lease, error) { return second, nil }
	})
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, b.lease.conn.Close())
	select {
	case <-second.slow.asked:
	case <-sshtest.Within(t).Done():
		t.Fatal("no second link is made")
	}
	_ = b.Close(sshtest.Within(t)) // it does not reach the step runner
	released := second.released.Load()
	close(second.slow.closed)
	require.Positive(t, b.lease.released.Load())
	require.Positive(t, released)
	require.Eventually(t, func() bool { return second.conn.Stat().Sessions.Taken == 0 }, sshtest.Bound, time.Millisecond)
}

// A manager that was shut down while it came back to a build could end that.
func TestABuildThatIsLeftBeforeTheConnectGoesOn(t *testing.T) {
	server := embedded(t)
	var first *build
	attach := func(socket string) *build {
		return newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
			cfg.Linger, cfg.Secret, cfg.Attach = time.Minute, strings.Repeat("s", 43), socket
			cfg.Reconnect = func(context.Context) (connector.Lease, error) { return &lease{conn: connect(t, server)}, nil }
			if first != nil {
				cfg.TempDir = first.tmp
			}
		})
	}
	first = attach("")
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

	third := attach(socket)
	_, err = third.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, third.Close(sshtest.Within(t)))
	require.Empty(t, third.Left())
}
