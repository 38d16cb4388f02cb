package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// connections holds the connections to all hosts of a group. Those with as many hosts on the way share a
// pool: a dial holds one of its pool's places while it waits for the host it goes through, so in one pool
// many dials could wait for one that never gets a place.
type connections struct {
	group *Group
	trace *mux.Trace // of connections whose host has none of its own; may be nil
	pools [maxHops + 1]*pool.Pool[*mux.Conn]
}

func newConnections(group *Group, trace *mux.Trace, cfg pool.Config[*mux.Conn]) *connections {
	c := &connections{group: group, trace: trace}
	cfg.Dial, cfg.Server = c.dial, c.server
	for i := range c.pools {
		c.pools[i] = pool.New(cfg)
	}
	return c
}

// Acquire returns a lease on the connection of the host whose ID is key. See pool.Pool.
func (c *connections) Acquire(ctx context.Context, key pool.Key) (*pool.Lease[*mux.Conn], error) {
	h, err := c.host(string(key))
	if err != nil {
		return nil, err
	}
	return c.pools[h.depth].Acquire(ctx, key)
}

func (c *connections) host(id string) (*host, error) {
	h := c.group.host(id)
	if h == nil {
		return nil, fmt.Errorf("instance %s is not in the group", id)
	}
	return h, nil
}

// server names the server that a host's logins go to, for a pool.
func (c *connections) server(key pool.Key) string {
	h := c.group.host(string(key))
	if h == nil {
		return "" // its dial says so
	}
	return h.via + " " + h.addr
}

// dial connects to the host whose ID is key, for a pool.
func (c *connections) dial(ctx context.Context, key pool.Key) (*mux.Conn, error) {
	conn, err := c.connect(ctx, string(key), nil)
	if err != nil {
		return nil, err
	}
	c.group.connected(string(key), conn)
	return conn, nil
}

// connect connects to a host. trace is told, or if it is nil the host's own or that of all.
func (c *connections) connect(ctx context.Context, id string, trace *mux.Trace) (*mux.Conn, error) {
	h, err := c.host(id)
	if err != nil {
		return nil, err
	}
	cfg := h.ssh
	cfg.MachineID = h.id
	switch {
	case trace != nil:
		cfg.Trace = trace
	case cfg.Trace == nil:
		cfg.Trace = c.trace
	}
	if h.via != "" {
		cfg.DialNet = func(ctx context.Context, addr string) (net.Conn, error) { return c.dialVia(ctx, h.via, addr) }
	}
	return mux.Dial(ctx, h.addr, &cfg)
}

// dialVia connects to addr by way of a host, whose connection stays in use until the result is closed.
func (c *connections) dialVia(ctx context.Context, via, addr string) (net.Conn, error) {
	lease, err := c.Acquire(ctx, pool.Key(via))
	if err != nil {
		return nil, &wayError{via, err}
	}
	nc, err := lease.Conn().DialNet(ctx, addr)
	if err != nil {
		lease.Release()
		return nil, fmt.Errorf("by way of %s: %w", via, err)
	}
	return &leasedConn{nc, lease}, nil
}

// wayError says that a host on the way cannot be reached.
type wayError struct {
	via string
	err error
}

func (e *wayError) Error() string { return fmt.Sprintf("by way of %s: %v", e.via, e.err) }
func (e *wayError) Unwrap() error { return e.err }

// leasedConn is a connection by way of another, which it has a lease on.
type leasedConn struct {
	net.Conn
	lease *pool.Lease[*mux.Conn]
}

// Close closes the connection and ends the lease. Idempotent.
func (c *leasedConn) Close() error {
	err := c.Conn.Close()
	c.lease.Release()
	return err
}

// retire takes a host's connection out of service, and one from when it was reached in another way.
func (c *connections) retire(id string, cause error) {
	for _, p := range c.pools {
		p.Retire(pool.Key(id), cause)
	}
}

// states says what there is of connections, by the hosts' IDs.
func (c *connections) states() map[string]ConnState {
	all := map[string]ConnState{}
	for _, p := range c.pools {
		for _, k := range p.Stat().Keys {
			id, state := string(k.Key), connState(k)
			if before := all[id]; before == "" || before == ConnNone || before == ConnLeaving {
				all[id] = state
			}
		}
	}
	return all
}

// Shutdown and Close do for all what pool.Pool's do for one, at the same time: a connection that others go
// through is released when they are closed.
func (c *connections) Shutdown(ctx context.Context) error {
	return c.each(func(p *pool.Pool[*mux.Conn]) error { return p.Shutdown(ctx) })
}

// Close: see Shutdown.
func (c *connections) Close() error {
	return c.each((*pool.Pool[*mux.Conn]).Close)
}

func (c *connections) each(end func(*pool.Pool[*mux.Conn]) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.pools))
	for i, p := range c.pools {
		wg.Go(func() { errs[i] = end(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
