package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

// Pool keeps one connection for each key in use. It is safe for concurrent use.
//
// It owns one goroutine for each dial and one for each connection; Close waits for all of them. A key with neither is
// forgotten.
type Pool[C Conn] struct {
	cfg   Config[C]
	force sync.Once     // runs Close's part of the work once
	now   chan struct{} // closed by Close: connections no longer wait for their leases
	gone  chan struct{} // closed once the pool is closed and its goroutines have ended

	mu      sync.Mutex // guards the following, and the fields of entries, dials and connections that name it
	entries map[Key]*entry[C]
	closed  bool   // no new leases
	running int    // goroutines
	dials   uint64 // calls of Config.Dial
}

// New returns a pool without connections. It panics if cfg.Dial is nil or cfg.MaxAge is negative. The
// caller ends the pool with Close or Shutdown.
func New[C Conn](cfg Config[C]) *Pool[C] {
	return &Pool[C]{
		cfg:     cfg.checked(),
		now:     make(chan struct{}),
		gone:    make(chan struct{}),
		entries: map[Key]*entry[C]{},
	}
}

// Acquire returns a lease on the key's connection, which the caller ends with Release or Retire. If
// no connection is in service, Acquire waits for the dial under way or begins one. It never returns a
// connection that is known to have ended.
//
// ctx governs this caller's wait and nothing after it. When it ends, Acquire returns an error that
// wraps its cause; the dial goes on for the others. A dial that has no callers left is given up while
// it waits (see Standby); otherwise it goes on, and the connection it makes is then idle.
//
// All callers of a dial that fails get the error of Config.Dial, as it is. Acquire returns an error
// that wraps ErrClosed if the pool is closed, before or during the call.
func (p *Pool[C]) Acquire(ctx context.Context, key Key) (*Lease[C], error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("acquire %s: %w", key, context.Cause(ctx))
	}
	c, d, err := p.leaseOrJoin(ctx, key)
	if d != nil {
		c, err = p.await(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	return &Lease[C]{p: p, c: c}, nil
}

// leaseOrJoin takes a lease on the key's connection if one is in service, else joins its dial.
func (p *Pool[C]) leaseOrJoin(ctx context.Context, key Key) (*pooled[C], *dial[C], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return nil, nil, closedError(key)
		}
		e := p.entryLocked(key)
		c := e.current
		switch {
		case c == nil:
			return nil, p.joinLocked(ctx, e), nil
		case !isDone(c.done):
			c.leases++
			return c, nil, nil
		}
		// The connection has died, but its own goroutine has not retired it yet.
		p.mu.Unlock()
		p.retire(c, c.conn.Err())
		p.mu.Lock()
	}
}

// Retire takes the key's connection out of service, because the machine is gone or has changed. The connection takes
// no new leases and closes with its last one, or at once if it has none. A dial under way is ended, and its callers
// get an error that wraps err. err may be nil. Retire does not wait, and does nothing for a key without connection or
// dial. The next Acquire dials again.
func (p *Pool[C]) Retire(key Key, err error) {
	err = cmp.Or(err, errRetired)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[key]
	if e == nil {
		return
	}
	p.endLocked(e, fmt.Errorf("connect %s: %w", key, err), err)
}

// Sever is Retire that does not wait for leases: it closes the key's connections at once, and returns when they are
// closed.
func (p *Pool[C]) Sever(key Key, err error) {
	p.Retire(key, err)
	var open []*pooled[C]
	p.mu.Lock()
	if e := p.entries[key]; e != nil {
		open = slices.Clone(e.pooled)
	}
	p.mu.Unlock()
	for _, c := range open {
		_ = c.close() // the cause is known
	}
}

// endLocked takes a key's connection out of service because of cause, and ends its dial with err for the waiters.
func (p *Pool[C]) endLocked(e *entry[C], err, cause error) {
	if e.dial != nil {
		p.settleLocked(e.dial, nil, err, cause)
	}
	if e.current != nil {
		p.retireLocked(e.current, cause)
	}
}

// Shutdown drains the pool: it refuses new leases, makes callers in Acquire return ErrClosed, and closes each
// connection with its last lease. It returns nil when all are closed and the pool's goroutines have ended. If ctx
// ends first it acts as Close and returns an error that wraps ctx's cause. It may be called more than once, and
// together with Close.
func (p *Pool[C]) Shutdown(ctx context.Context) error {
	p.drain()
	select {
	case <-p.gone:
		return nil
	case <-ctx.Done():
	}
	if isDone(p.gone) {
		return nil
	}
	leases := p.Stat().Leases
	_ = p.Close() // nil
	return fmt.Errorf("shut down pool, leases out: %d: %w", leases, context.Cause(ctx))
}

// Close ends the pool now: callers in Acquire return ErrClosed, dials are cancelled, connections are
// closed under the leases that are out. It waits until all connections are closed and the pool's
// goroutines have ended. Close is idempotent and returns nil; leases may be released after it.
func (p *Pool[C]) Close() error {
	p.drain()
	p.force.Do(func() { close(p.now) })
	<-p.gone
	return nil
}

// drain begins the end of the pool: no new leases, no dials, and all connections out of service.
func (p *Pool[C]) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for key, e := range p.entries {
		p.endLocked(e, closedError(key), ErrClosed)
	}
	p.running++ // drain counts as a goroutine, so that the end of the last one closes gone
	p.exitLocked()
}

// exitLocked counts the end of a goroutine.
func (p *Pool[C]) exitLocked() {
	p.running--
	if p.closed && p.running == 0 {
		close(p.gone)
	}
}

func closedError(key Key) error { return fmt.Errorf("acquire %s: %w", key, ErrClosed) }
