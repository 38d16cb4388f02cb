package docker

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

var (
	_ connector.Conn  = (*Container)(nil)
	_ connector.Lease = (*Container)(nil)
)

// Conn implements connector.Lease.
func (c *Container) Conn() connector.Conn { return c }

// Release implements connector.Lease. It closes a Container that Reconnect returned. The one that Start returned is
// closed by its caller.
func (c *Container) Release() {
	if c.again {
		_ = c.Close(context.Background()) // nothing that could fail
	}
}

// Relay implements connector.Conn. It returns the relay that is the container's main process. Its stderr goes to
// cmd.Stderr from now on.
func (c *Container) Relay(_ context.Context, cmd mux.Command) (*relay.Relay, error) {
	if err := c.relay.Err(); err != nil {
		return nil, err
	}
	if cmd.Stderr != nil {
		c.stderr.direct(cmd.Stderr)
	}
	return c.relay, nil
}

// Start implements connector.Conn, by the relay.
func (c *Container) Start(ctx context.Context, cmd mux.Command) (*mux.Process, error) {
	return c.relay.Start(ctx, cmd)
}

// Reserve implements connector.Conn: a container has no sessions.
func (*Container) Reserve(context.Context, int) (*mux.Reservation, error) { return nil, errNoSessions }

// TryReserve implements connector.Conn, as Reserve.
func (*Container) TryReserve(context.Context, int) (*mux.Reservation, error) {
	return nil, errNoSessions
}

// StartSpare implements connector.Conn, as Reserve.
func (*Container) StartSpare(context.Context, mux.Command) (*mux.Spare, error) {
	return nil, errNoSessions
}

// DialUnix implements connector.Conn, by the relay.
func (c *Container) DialUnix(ctx context.Context, path string) (*mux.Stream, error) {
	return c.relay.DialUnix(ctx, path)
}

var errNoSessions = fmt.Errorf("a container: %w", mux.ErrForbidden)

// stderr takes the stderr of the container's main process: it keeps the last lines, and passes all on once there is a
// Writer for them.
type stderr struct {
	tail tail.Writer

	mu sync.Mutex // guards the following
	to io.Writer
}

// Write implements io.Writer. It never fails.
func (s *stderr) Write(p []byte) (int, error) {
	_, _ = s.tail.Write(p) // never fails
	s.mu.Lock()
	to := s.to
	s.mu.Unlock()
	if to != nil {
		_, _ = to.Write(p) // no other reader wants it
	}
	return len(p), nil
}

func (s *stderr) direct(to io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
}
