package pool

import (
	"math"
	"slices"
	"time"
)

// never is longer than any process lives.
const never = time.Duration(math.MaxInt64)

// member is a connection and its place in the pool.
type member[C Conn] struct {
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
func (p *Pool[C]) keep(m *member[C]) {
	p.watch(m)
	p.cfg.Retired(m.e.key, m.cause)
	select {
	case <-m.drained:
	case <-m.done: // it has died, with or without leases
	case <-p.now:
	}
	_ = m.close() // the cause is known
	select {
	case <-m.drained:
	case <-p.now:
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	m.e.members = slices.DeleteFunc(m.e.members, func(o *member[C]) bool { return o == m })
	p.forgetLocked(m.e)
	p.exitLocked()
}

// watch retires m when it dies, is idle or expires, and returns once m is out of service.
func (p *Pool[C]) watch(m *member[C]) {
	timer := time.NewTimer(p.review(m))
	defer timer.Stop()
	for {
		select {
		case <-m.retired:
			return
		case <-m.done:
			p.retire(m, m.conn.Err())
			return
		case <-timer.C:
			timer.Reset(p.review(m))
		}
	}
}

// review retires m if it has expired or was idle for long enough. Otherwise it returns the time until the next
// review: leases come and go without touching the timer.
func (p *Pool[C]) review(m *member[C]) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, next := time.Now(), never
	if idle := p.cfg.IdleTimeout; idle > 0 {
		next = idle
		if m.leases == 0 {
			next = m.idleSince.Add(idle).Sub(now)
		}
		if next <= 0 {
			p.retireLocked(m, ErrIdle)
		}
	}
	if !m.expires.IsZero() {
		next = min(next, m.expires.Sub(now))
		if !now.Before(m.expires) {
			p.retireLocked(m, ErrExpired)
		}
	}
	return next
}

func (p *Pool[C]) retire(m *member[C], cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retireLocked(m, cause)
}

// retireLocked takes m out of service. The first cause stays.
func (p *Pool[C]) retireLocked(m *member[C], cause error) {
	if m.outLocked() {
		return
	}
	m.cause = cause
	close(m.retired)
	m.e.current = nil // m was current, or m has just arrived and there is no current
	if m.leases == 0 {
		close(m.drained)
	}
}

// releaseLocked ends one lease.
func (p *Pool[C]) releaseLocked(m *member[C]) {
	m.leases--
	switch {
	case m.leases < 0:
		panic("BUG: lease count negative")
	case m.leases > 0:
	case m.outLocked():
		close(m.drained)
	default:
		m.idleSince = time.Now()
	}
}

// outLocked reports whether m is out of service.
func (m *member[C]) outLocked() bool { return isDone(m.retired) }
