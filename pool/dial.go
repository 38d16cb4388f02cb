package pool

import (
	"context"
	"fmt"
)

// dial is one effort to connect, shared by all who wait for it: one or more calls of Config.Dial. It
// is under way, and may be joined, while it is its entry's dial; settling it ends that.
type dial[C Conn] struct {
	e       *entry[C]
	cancel  context.CancelCauseFunc
	settled chan struct{} // closed once m or err is set

	m     *member[C] // with a lease for each waiter
	err   error      // what the waiters get
	cause error      // why a connection that arrives in spite of err is not wanted

	// Pool.mu guards the following.
	waiters  int
	trying   bool // Config.Dial is being called
	attempts int
	server   string // at which it is
}

// joinLocked counts one more who waits for the entry's dial, and begins that if there is none.
func (p *Pool[C]) joinLocked(ctx context.Context, e *entry[C]) *dial[C] {
	if e.dial == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		e.dial = &dial[C]{e: e, cancel: cancel, settled: make(chan struct{})}
		e.dialers++
		p.running++
		go p.run(ctx, e.dial)
	}
	e.dial.waiters++
	return e.dial
}

// await waits for a dial that was joined, and returns the connection with a lease taken.
func (p *Pool[C]) await(ctx context.Context, d *dial[C]) (*member[C], error) {
	select {
	case <-d.settled:
		return d.m, d.err
	case <-ctx.Done():
	}
	err := fmt.Errorf("acquire %s: %w", d.e.key, context.Cause(ctx))
	if last := p.leave(d); last != nil {
		// As text: this caller's wait failed because of its ctx.
		err = fmt.Errorf("%w (last attempt to connect: %s)", err, last.Error())
	}
	return nil, err
}

// leave undoes a join. It returns the error of the last attempt to connect, if that failed.
func (p *Pool[C]) leave(d *dial[C]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case d.m != nil:
		p.releaseLocked(d.m) // the dial was faster
	case d.e.dial == d:
		d.waiters--
		if d.waiters == 0 && !d.trying {
			p.settleLocked(d, nil, errAbandoned, errAbandoned)
		}
	}
	return d.e.lastErr
}

// settleLocked ends a dial that is under way: with a connection, which gets a lease for each waiter,
// or with err for the waiters and cause for a connection that may yet arrive.
func (p *Pool[C]) settleLocked(d *dial[C], m *member[C], err, cause error) {
	d.m, d.err, d.cause = m, err, cause
	if m != nil {
		m.leases = d.waiters
	}
	d.e.dial = nil
	close(d.settled)
	d.cancel(cause)
}
