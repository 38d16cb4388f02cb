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
	pools [maxHops + 1]*pool.Pool[*mux.Conn]
}

func newConnections(group *Group, cfg pool.Config[*mux.Conn]) *connections {
	c := &connections{group: group}
	cfg.Dial = c.dial
	for i := range c.pools {
		c.pools[i] = pool.New(cfg)
	}
	return c
}

// Acquire returns a lease on the connection of the host whose ID is key. See pool.Pool.
func (c *connections) Acquire(ctx context.Context, key pool.Key) (*pool.Lease[*mux.Conn], error) {
	h := c.group.host(string(key))
	if h == nil {
		return nil, fmt.Errorf("instance %s is not in the group", key)
	}
	return c.pools[h.depth].Acquire(ctx, key)
}

// dial connects to the host whose ID is key.
func (c *connections) dial(ctx context.Context, key pool.Key) (*mux.Conn, error) {
	h := c.group.host(string(key))
	if h == nil {
		return nil, fmt.Errorf("instance %s is not in the group", key)
	}
	cfg := h.ssh
	cfg.MachineID = h.id
	if h.via != "" {
		cfg.DialNet = func(ctx context.Context, addr string) (net.Conn, error) { return c.dialVia(ctx, h.via, addr) }
	}
	conn, err := mux.Dial(ctx, h.addr, &cfg)
	if err != nil {
		return nil, err
	}
	c.group.connected(h, conn)
	return conn, nil
}

// dialVia connects to addr by way of a host, whose connection stays in use until the result is closed.
func (c *connections) dialVia(ctx context.Context, via, addr string) (net.Conn, error) {
	lease, err := c.Acquire(ctx, pool.Key(via))
	if err != nil {
		return nil, fmt.Errorf("by way of %s: %w", via, err)
	}
	nc, err := lease.Conn().DialNet(ctx, addr)
	if err != nil {
		lease.Release()
		return nil, fmt.Errorf("by way of %s: %w", via, err)
	}
	return &leasedConn{nc, lease}, nil
}

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

// retire takes a host's connection out of service.
func (c *connections) retire(h *host, cause error) { c.pools[h.depth].Retire(pool.Key(h.id), cause) }

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
