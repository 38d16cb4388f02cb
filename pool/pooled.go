package pool

import (
	"math"
	"slices"
	"time"
)

// never is longer than any process lives.
const never = time.Duration(math.MaxInt64)

// pooled is a connection and its place in the pool.
type pooled[C Conn] struct {
	e       *entry[C]
	conn    C
	done    <-chan struct{} // conn.Done(), which is not called under the lock
	since   time.Time       // when it was dialed
	expires time.Time       // takes no leases from then on; zero if it does not expire
	retired chan struct{}   // closed once cause is set: out of service
	drained chan struct{}   // closed once it is out of service and has no leases
	close   func() error    // closes conn, once

	// Pool.mu guards the following.
	leases    int
	idleSince time.Time // when the last lease ended; valid if leases is 0
	cause     error     // why it is out of service
}

// isDone reports whether a channel is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// keep is the goroutine of a connection: it runs until the connection is closed and has no leases.
func (p *Pool[C]) keep(c *pooled[C]) {
	p.watch(c)
	p.cfg.Retired(c.e.key, c.cause)
	select {
	case <-c.drained:
	case <-c.done: // it has died, with or without leases
	case <-p.now:
	}
	_ = c.close() // the cause is known
	select {
	case <-c.drained:
	case <-p.now:
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	c.e.pooled = slices.DeleteFunc(c.e.pooled, func(o *pooled[C]) bool { return o == c })
	p.forgetLocked(c.e)
	p.exitLocked()
}

// watch retires c when it dies, is idle or expires, and returns once c is out of service.
func (p *Pool[C]) watch(c *pooled[C]) {
	timer := time.NewTimer(p.review(c))
	defer timer.Stop()
	for {
		select {
		case <-c.retired:
			return
		case <-c.done:
			p.retire(c, c.conn.Err())
			return
		case <-timer.C:
			timer.Reset(p.review(c))
		}
	}
}

// review retires c if it has expired or was idle for long enough. Otherwise it returns the time until the next
// review: leases come and go without touching the timer.
func (p *Pool[C]) review(c *pooled[C]) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, next := time.Now(), never
	if idle := p.cfg.IdleTimeout; idle > 0 {
		next = idle
		if c.leases == 0 {
			next = c.idleSince.Add(idle).Sub(now)
		}
		if next <= 0 {
			p.retireLocked(c, ErrIdle)
		}
	}
	if !c.expires.IsZero() {
		next = min(next, c.expires.Sub(now))
		if !now.Before(c.expires) {
			p.retireLocked(c, ErrExpired)
		}
	}
	return next
}

func (p *Pool[C]) retire(c *pooled[C], cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retireLocked(c, cause)
}

// retireLocked takes c out of service. The first cause stays.
func (p *Pool[C]) retireLocked(c *pooled[C], cause error) {
	if c.outLocked() {
		return
	}
	c.cause = cause
	close(c.retired)
	c.e.current = nil // c was current, or c has just arrived and there is no current
	if c.leases == 0 {
		close(c.drained)
	}
}

// releaseLocked ends one lease.
func (p *Pool[C]) releaseLocked(c *pooled[C]) {
	c.leases--
	switch {
	case c.leases < 0:
		panic("BUG: lease count negative")
	case c.leases > 0:
	case c.outLocked():
		close(c.drained)
	default:
		c.idleSince = time.Now()
	}
}

// outLocked reports whether c is out of service.
func (c *pooled[C]) outLocked() bool { return isDone(c.retired) }
