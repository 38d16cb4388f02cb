package mux

import (
	"context"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
)

// keepalive ends the connection when the peer has been silent for interval and then gives no sign
// of life for timeout. It is the only code that declares a connection dead; all other waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	ask := func() { c.askPeer() }
	if err := alive.Watch(c.done, interval, timeout, c.nc.heard, ask); err != nil {
		c.fail("keepalive", err)
	}
}

// question asks the peer for an answer and takes the time. Any will do, a refusal too.
type question struct {
	done chan struct{} // closed once rtt or err is set
	rtt  time.Duration
	err  error
}

// askPeer asks the peer, or joins the question that is under way: a peer that lives and never answers would
// otherwise gather those who wait for it. A dead one may never answer; the connection's close ends it.
func (c *Conn) askPeer() *question {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.question != nil {
		return c.question
	}
	q := &question{done: make(chan struct{})}
	if c.err != nil {
		q.err = c.err
		close(q.done)
		return q
	}
	c.question = q
	c.wg.Go(func() {
		asked := time.Now()
		_, _, q.err = c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		if q.err == nil { // else the connection is ending
			q.rtt = time.Since(asked)
			c.rtt.Store(int64(q.rtt))
			c.trace.keepalive(q.rtt)
		}
		c.mu.Lock()
		c.question = nil
		c.mu.Unlock()
		close(q.done)
	})
	return q
}

// Ping asks the peer for an answer and returns how long that took; calls at one time share an answer. When ctx
// ends first it returns its cause.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	q := c.askPeer()
	select {
	case <-q.done:
		if q.err != nil {
			c.settle(c.done)
			if lost := c.alive("ping"); lost != nil {
				return 0, lost
			}
			return 0, fmt.Errorf("ping: %w", q.err)
		}
		return q.rtt, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("ping: %w", context.Cause(ctx))
	}
}

// measureRTT returns how long an answer of the peer takes now, 0 if there is none.
func (c *Conn) measureRTT(ctx context.Context) time.Duration {
	select {
	case <-c.askPeer().done:
	case <-ctx.Done():
	}
	return time.Duration(c.rtt.Load())
}
