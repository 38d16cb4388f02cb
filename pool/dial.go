package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// dial is one call of Config.Dial, shared by all its waiters. It is in progress, and can be joined, until it is
// settled.
//
// It is not an internal/flight: each waiter gets a lease together with the result, under the pool's lock, and Retire
// settles a dial before its work ends.
type dial[C Conn] struct {
	p       *Pool[C]
	e       *entry[C]
	cancel  context.CancelCauseFunc // ends Config.Dial; called when the dial is settled
	settled chan struct{}           // closed once c or err is set

	c     *pooled[C] // with a lease for each waiter
	err   error      // for the waiters
	cause error      // why a connection that still arrives after err is retired

	// Pool.mu guards the following.
	waiters int
	working bool // Config.Dial was called and is not in Standby: the dial goes on without waiters
}

// joinLocked adds a waiter to the entry's dial, and begins the dial if necessary.
func (p *Pool[C]) joinLocked(ctx context.Context, e *entry[C]) *dial[C] {
	if e.dial == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		e.dial = &dial[C]{p: p, e: e, cancel: cancel, settled: make(chan struct{})}
		e.dialers++
		p.running++
		go p.run(context.WithValue(ctx, dialKey{}, e.dial), e.dial)
	}
	e.dial.waiters++
	return e.dial
}

// run is the goroutine of a dial. ctx ends when the dial is settled.
func (p *Pool[C]) run(ctx context.Context, d *dial[C]) {
	defer p.exitDial(d)
	select {
	case d.e.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-d.e.turn }()
	if p.awaitClosing(ctx, d.e) != nil || !d.begin() {
		return
	}
	conn, err := p.cfg.Dial(ctx, d.e.key)
	if err == nil && isDone(conn.Done()) {
		err = fmt.Errorf("connect %s: connection ended at once: %w", d.e.key, conn.Err())
		_ = conn.Close() // it has ended, and err says why
	}
	if err == nil {
		p.publish(d, conn)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.e.dial == d {
		p.settleLocked(d, nil, err, err)
	}
}

// awaitClosing waits until connections that are out of service and without leases have closed. A new connection may
// only stand beside an old one that has leases.
func (p *Pool[C]) awaitClosing(ctx context.Context, e *entry[C]) error {
	var closing []*pooled[C]
	p.mu.Lock()
	for _, c := range e.pooled {
		if c.outLocked() && c.leases == 0 {
			closing = append(closing, c)
		}
	}
	p.mu.Unlock()
	for _, c := range closing {
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// begin counts the call of Config.Dial that follows. It returns false if the dial is settled.
func (d *dial[C]) begin() bool {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.e.dial != d {
		return false
	}
	d.working = true
	d.p.dials++
	return true
}

// dialKey is the context key by which Standby finds the dial of a Config.Dial.
type dialKey struct{}

// Standby calls wait. A Config.Dial uses it to wait for its turn or between two attempts; ctx is Dial's, or derived
// from it. If the last caller leaves while a dial is in Standby, the dial is given up and its ctx ends; outside
// Standby the dial goes on. Standby returns the error of wait, or the cause of ctx if ctx has ended. Outside a
// Config.Dial it only calls wait.
func Standby(ctx context.Context, wait func() error) error {
	d, ok := ctx.Value(dialKey{}).(interface{ setWorking(working bool) })
	if !ok {
		return wait()
	}
	d.setWorking(false)
	err := wait()
	d.setWorking(true)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

func (d *dial[C]) setWorking(working bool) {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	d.working = working
	d.abandonLocked()
}

// abandonLocked gives the dial up if it is in Standby and has no waiters.
func (d *dial[C]) abandonLocked() {
	if d.waiters == 0 && !d.working && d.e.dial == d {
		d.p.settleLocked(d, nil, errAbandoned, errAbandoned)
	}
}

// await waits for a dial that the caller has joined, and returns the connection with a lease taken.
func (p *Pool[C]) await(ctx context.Context, d *dial[C]) (*pooled[C], error) {
	select {
	case <-d.settled:
		return d.c, d.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.c != nil {
		p.releaseLocked(d.c) // the dial succeeded before ctx ended
	} else {
		d.waiters--
		d.abandonLocked()
	}
	return nil, fmt.Errorf("acquire %s: %w", d.e.key, context.Cause(ctx))
}

// publish puts a new connection into service, or retires it if it is no longer wanted.
func (p *Pool[C]) publish(d *dial[C], conn C) {
	now, e := time.Now(), d.e
	c := &pooled[C]{e: e, conn: conn, done: conn.Done(), since: now, idleSince: now}
	c.retired, c.drained, c.close = make(chan struct{}), make(chan struct{}), sync.OnceValue(conn.Close)
	if age := p.cfg.MaxAge; age > 0 {
		c.expires = now.Add(age - rand.N(age/10+1))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.pooled = append(e.pooled, c)
	if e.dial == d {
		e.current = c
		p.settleLocked(d, c, nil, nil)
	} else {
		p.retireLocked(c, d.cause)
	}
	p.running++
	go p.keep(c)
}

// settleLocked ends a dial that is under way, with a connection that gets a lease for each waiter, or with err for
// the waiters. cause is then the reason for which a connection that still arrives is retired.
func (p *Pool[C]) settleLocked(d *dial[C], c *pooled[C], err, cause error) {
	d.c, d.err, d.cause = c, err, cause
	if c != nil {
		c.leases = d.waiters
	}
	d.e.dial = nil
	close(d.settled)
	d.cancel(cause)
}

// exitDial ends the goroutine of a dial.
func (p *Pool[C]) exitDial(d *dial[C]) {
	d.cancel(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	d.e.dialers--
	p.forgetLocked(d.e)
	p.exitLocked()
}
