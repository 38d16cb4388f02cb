package pool

import (
	"context"
	"fmt"
	"time"
)

// run is the goroutine of a dial. Until the first attempt ctx ends only because the dial was settled.
func (p *Pool[C]) run(ctx context.Context, d *dial[C]) {
	defer p.exitDial(d)
	if put(ctx, d.e.turn) != nil {
		return
	}
	defer func() { <-d.e.turn }()
	if p.begin(ctx, d) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	for {
		conn, err := p.attempt(ctx, d)
		if err == nil {
			p.publish(d, conn)
			return
		}
		if p.fail(ctx, d, err) {
			return
		}
		if p.begin(ctx, d) != nil {
			p.giveUp(d, err)
			return
		}
	}
}

// begin waits until an attempt is allowed, by the key's pacing, its older connections and the fleet's
// pacing, and begins it. The caller must then make the attempt.
func (p *Pool[C]) begin(ctx context.Context, d *dial[C]) error {
	p.mu.Lock()
	retryAt := d.e.retryAt
	p.mu.Unlock()
	if err := waitUntil(ctx, retryAt); err != nil {
		return err
	}
	if err := p.awaitClosing(ctx, d.e); err != nil {
		return err
	}
	server := p.server(d.e.key)
	if err := p.fleet.enter(ctx, server); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil { // settled, or out of time, while the turn was given
		p.fleet.leave(server)
		return context.Cause(ctx)
	}
	d.trying, d.server = true, server
	d.attempts++
	d.e.dials++
	p.dials++
	return nil
}

// server names the server of a key; empty for one of its own.
func (p *Pool[C]) server(key Key) string {
	if p.cfg.Server == nil {
		return ""
	}
	return p.cfg.Server(key)
}

// awaitClosing waits until connections that are out of service and have no leases have ended: for one
// key there is one connection, but for what is in flight on older ones.
func (p *Pool[C]) awaitClosing(ctx context.Context, e *entry[C]) error {
	var closing []*member[C]
	p.mu.Lock()
	for _, m := range e.members {
		if m.outLocked() && m.leases == 0 {
			closing = append(closing, m)
		}
	}
	p.mu.Unlock()
	for _, m := range closing {
		select {
		case <-m.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// attempt calls Config.Dial, after begin.
func (p *Pool[C]) attempt(ctx context.Context, d *dial[C]) (C, error) {
	key, n := d.e.key, d.attempts // which only this goroutine changes
	p.cfg.Trace.dialStart(key, n)
	start := time.Now()
	conn, err := p.cfg.Dial(ctx, key)
	took := time.Since(start)
	p.fleet.leave(d.server) // as n
	if err == nil {
		select {
		case <-conn.Done():
			err = fmt.Errorf("connection ended at once: %w", conn.Err())
			_ = conn.Close() // it has ended; why is known
		default:
		}
	}
	p.cfg.Trace.dialDone(key, n, took, err)
	return conn, err
}

// publish puts a new connection into service, or, if it is no longer wanted, sees it closed.
func (p *Pool[C]) publish(d *dial[C], conn C) {
	m := p.newMember(d.e, conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := d.e
	e.members = append(e.members, m)
	e.opened++
	e.failures, e.lastErr, e.retryAt, e.refused = 0, nil, time.Time{}, nil
	if e.dial == d {
		e.current = m
		p.settleLocked(d, m, nil, nil)
	} else {
		p.retireLocked(m, d.cause)
	}
	p.running++
	go p.keep(m)
}

// fail records a failed attempt and reports whether it was the dial's last.
func (p *Pool[C]) fail(ctx context.Context, d *dial[C], err error) bool {
	permanent := p.cfg.Permanent(err)
	deadline, _ := ctx.Deadline()
	p.mu.Lock()
	defer p.mu.Unlock()
	d.trying = false
	p.failed++
	e := d.e
	if e.dial != d {
		return true // cancelled, which says nothing of the machine
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no connection within %v: %w", p.cfg.DialTimeout, err)
	}
	e.failures++
	e.lastErr = err
	pause := p.cfg.RetryMax
	if !permanent {
		pause = backoff(p.cfg.RetryBase, p.cfg.RetryMax, e.failures)
	}
	e.retryAt = time.Now().Add(pause)
	if !permanent && d.attempts < p.cfg.DialAttempts && d.waiters > 0 && e.retryAt.Before(deadline) {
		return false
	}
	failed := &DialError{Key: e.key, Attempts: d.attempts, Permanent: permanent, Err: err}
	if e.refused = nil; permanent {
		e.refused = failed
	}
	p.settleLocked(d, nil, failed, err)
	return true
}

// giveUp ends a dial whose time ran out between two attempts.
func (p *Pool[C]) giveUp(d *dial[C], err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.e.dial == d {
		p.settleLocked(d, nil, &DialError{Key: d.e.key, Attempts: d.attempts, Err: err}, err)
	}
}

// exitDial is the last act of a dial's goroutine.
func (p *Pool[C]) exitDial(d *dial[C]) {
	d.cancel(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	d.e.dialers--
	p.forgetLocked(d.e)
	p.exitLocked()
}
