package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// connections holds the connections to all hosts of a group in one pool, and implements the failure policy: a failed
// attempt is retried after a backoff, attempts are paced across the fleet and for each server, and a refused login is
// not retried. Failures are recorded in each host's health. Close and Shutdown end it.
type connections[C pool.Conn] struct {
	group *Group
	pacer *pacer
	pool  *pool.Pool[C]

	// connect makes one attempt to connect to a host, through its jump host if via is not nil. It calls wait, at most
	// once, when it begins to wait for the host. The connection releases via when it is closed; connect releases it if it
	// returns an error.
	connect func(ctx context.Context, h *host, via *pool.Lease[C], wait func()) (C, error)
	// timeout bounds a dial from its first attempt to its last, pauses included.
	timeout time.Duration
	// start and done are called for each attempt; n counts from 1 within a dial.
	start func(id string, n int)
	done  func(id string, n int, took time.Duration, err error)
}

// open makes the pool.
func (c *connections[C]) open(cfg pool.Config[C]) *connections[C] {
	c.pacer = newPacer()
	cfg.Dial = c.dial
	c.pool = pool.New(cfg)
	return c
}

// Acquire returns a lease on the connection of the host whose ID is key; see pool.Pool. If the caller's ctx ends
// first, the error includes why the last attempt failed.
func (c *connections[C]) Acquire(ctx context.Context, key pool.Key) (*pool.Lease[C], error) {
	h, err := c.group.findHost(string(key))
	if err != nil {
		return nil, err
	}
	lease, err := c.pool.Acquire(ctx, key)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		if last := c.group.healthOf(h).last; last != nil {
			// As text: the cause is the end of ctx.
			err = fmt.Errorf("%w (last attempt to connect: %s)", err, last.Error())
		}
	}
	return lease, err
}

// dial connects to the host whose ID is key, for the pool: in several attempts, until one succeeds, an error is
// permanent, or the time has passed. ctx ends when the connection is no longer wanted, which says nothing of the host.
func (c *connections[C]) dial(ctx context.Context, key pool.Key) (conn C, err error) {
	h, err := c.group.findHost(string(key))
	if err != nil {
		return conn, err
	}
	if c.group.isElsewhere(h.id) {
		return conn, ErrElsewhere
	}
	known := c.group.healthOf(h)
	if refused := known.refused(time.Now()); refused != nil {
		return conn, refused
	}
	most := maxAttempts
	if known.suspect != nil && known.isAwaited(c.group.awaitTime()) {
		most = 1 // the builds that wait for the host try others in between
	}
	wanted, retryAt, last := ctx, known.retryAt, error(nil)
	for n := 1; ; n++ {
		via, turn, err := c.awaitTurn(ctx, h, retryAt, n)
		if err != nil && ctx.Err() != nil {
			if wanted.Err() != nil {
				return conn, err
			}
			return conn, c.group.dialFailed(h, &dialError{host: h.id, attempts: n - 1, err: last})
		}
		if n == 1 {
			timed, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			ctx = timed //nolint:fatcontext // once
		}
		if err == nil {
			conn, err = c.attempt(ctx, h, via, turn, n)
		}
		switch {
		case err == nil:
			c.group.connected(h.id, conn)
			return conn, nil
		case wanted.Err() != nil:
			return conn, err
		case ctx.Err() != nil:
			err = fmt.Errorf("no connection within %v: %w", c.timeout, err)
		}
		permanent := isPermanent(err)
		retryAt = c.group.attemptFailed(h, err, permanent)
		deadline, _ := ctx.Deadline()
		_, silent := errors.AsType[*silentError](err)
		if silent && c.group.awaitTime() > 0 {
			most = n // builds may try others in between
		}
		if permanent || n == most || !retryAt.Before(deadline) {
			return conn, c.group.dialFailed(h, &dialError{h.id, n, permanent, err})
		}
		last = err
	}
}

// awaitTurn waits until h may be connected to: for the end of its backoff, then for its jump host, then for its turn by
// the pacer. The turn comes last, so that a dial that waits for another holds no slot. It returns a lease on the jump
// host's connection, nil without a jump host, and the turn.
func (c *connections[C]) awaitTurn(
	ctx context.Context, h *host, retryAt time.Time, n int,
) (via *pool.Lease[C], turn *turn, err error) {
	err = pool.Standby(ctx, func() error {
		err := pause.For(ctx, time.Until(retryAt))
		if err == nil {
			start := time.Now()
			if via, err = c.leaseVia(ctx, h); err != nil && ctx.Err() == nil {
				c.start(h.id, n)
				c.done(h.id, n, time.Since(start), err)
			}
		}
		if err == nil {
			turn, err = c.pacer.enter(ctx, h.server())
		}
		return err
	})
	if err == nil {
		return via, turn, nil
	}
	if turn != nil {
		turn.leave()
	}
	if via != nil {
		via.Release()
	}
	return nil, nil, err
}

// attempt connects to h once, after awaitTurn, and ends the turn. A connection that is dead on arrival is a failure.
func (c *connections[C]) attempt(ctx context.Context, h *host, via *pool.Lease[C], turn *turn, n int) (C, error) {
	c.start(h.id, n)
	start := time.Now()
	conn, err := c.connect(ctx, h, via, turn.wait)
	took := time.Since(start)
	turn.leave()
	if err == nil {
		select {
		case <-conn.Done():
			err = fmt.Errorf("connection ended at once: %w", conn.Err())
			_ = conn.Close() // it has ended, and err says why
		default:
		}
	}
	c.done(h.id, n, took, err)
	return conn, err
}

// leaseVia returns a lease on the connection of h's jump host, or nil if h has no jump host.
func (c *connections[C]) leaseVia(ctx context.Context, h *host) (*pool.Lease[C], error) {
	if h.via == "" {
		return nil, nil
	}
	lease, err := c.Acquire(ctx, pool.Key(h.via))
	if err != nil {
		return nil, &mux.DialError{Stage: "connect", Addr: h.addr, User: h.ssh.User, Err: &viaError{h.via, err}}
	}
	return lease, nil
}

// viaError reports that a jump host cannot be reached.
type viaError struct {
	via string
	err error
}

func (e *viaError) Error() string { return fmt.Sprintf("through jump host %s: %v", e.via, e.err) }
func (e *viaError) Unwrap() error { return e.err }

// patience is how long a server may be silent in the first of several attempts: until its host key is accepted. It
// doubles with each failure in a row, so that a slow server is reached. The login may take longer: an agent may ask its
// user.
const patience = 5 * time.Second

// silentError reports that a server did not answer in the time that one attempt gives it. It may have accepted the
// connection.
type silentError struct{ after time.Duration }

func (e *silentError) Error() string { return fmt.Sprintf("no answer within %v", e.after) }
func (*silentError) Unwrap() error   { return context.DeadlineExceeded }

// connect connects to a host by SSH; see connections.connect. It waits for patience, if that is not zero, until the
// host key is accepted.
func connect(
	ctx context.Context, h *host, via *pool.Lease[*mux.Conn], trace *mux.Trace, patience time.Duration, wait func(),
) (*mux.Conn, error) {
	cfg := h.ssh
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var silence *time.Timer
	hooks := *cmp.Or(trace, &mux.Trace{})
	cfg.MachineID, cfg.Trace = h.id, &hooks
	ended := hooks.DialPhase
	hooks.DialPhase = func(phase string, took time.Duration, err error) {
		if phase == "prepare" { // not before: it may run the operator's commands
			wait()
			if patience > 0 && err == nil {
				silence = time.AfterFunc(patience, func() { giveUp(&silentError{patience}) })
			}
		}
		if phase == "handshake" && silence != nil { // the login follows
			silence.Stop()
		}
		if ended != nil {
			ended(phase, took, err)
		}
	}
	if via != nil {
		cfg.DialNet = func(ctx context.Context, addr string) (net.Conn, error) {
			nc, err := via.Conn().DialNet(ctx, addr)
			if err != nil {
				return nil, fmt.Errorf("through jump host %s: %w", h.via, err)
			}
			return &leasedConn{nc, via}, nil
		}
	}
	conn, err := mux.Dial(ctx, h.addr, &cfg)
	if silence != nil {
		silence.Stop()
	}
	if err != nil && via != nil {
		via.Release()
	}
	return conn, err
}

// leasedConn is a connection through a jump host. It holds a lease on the jump host's connection.
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

// states returns the state of the connections, by the hosts' IDs.
func (c *connections[C]) states() map[string]pool.State {
	all := map[string]pool.State{}
	for _, k := range c.pool.Stat().Keys {
		all[string(k.Key)] = k.State()
	}
	return all
}
