package mux

import (
	"context"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
)

// keepalive ends the connection if the peer sends nothing for interval and then nothing for timeout although it was
// asked. Only this code declares a connection dead; all other waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	ask := func() { c.probe.Start(context.Background(), c.probePeer) }
	if err := alive.Watch(c.done, interval, timeout, c.nc.pulse.Heard, ask); err != nil {
		c.fail("keepalive", err)
	}
}

// probePeer asks the peer for an answer and measures the time. A refusal is an answer too. A dead peer may never
// answer: then the wait ends with the connection.
func (c *Conn) probePeer(context.Context) (rtt, keep time.Duration, err error) {
	asked := time.Now()
	if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		return 0, 0, err // the connection is ending
	}
	rtt = time.Since(asked)
	c.rtt.Store(int64(rtt))
	c.trace.Keepalive(rtt)
	return rtt, 0, nil
}

// Ping asks the peer for an answer and returns how long it took. Concurrent calls share an answer. If ctx ends first,
// the error is ctx's cause.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	rtt, err := c.probe.Do(ctx, c.probePeer)
	if err == nil {
		return rtt, nil
	}
	c.awaitEnd(ctx)
	if lost := c.ended("ping"); lost != nil && ctx.Err() == nil {
		return 0, lost
	}
	return 0, fmt.Errorf("ping: %w", err)
}

// confirm waits until the peer has answered, or the connection or ctx has ended. An answer proves that the connection
// was still alive after everything received before the call.
func (c *Conn) confirm(ctx context.Context) {
	for range 2 { // the first answer may have come before the call
		if _, err := c.probe.Do(ctx, c.probePeer); err != nil {
			c.awaitEnd(ctx)
			return
		}
	}
}

// awaitEnd waits for the end of the connection, or of ctx, after a probe has failed: nothing else prevents an answer.
func (c *Conn) awaitEnd(ctx context.Context) {
	select {
	case <-c.done: // soon
	case <-ctx.Done():
	}
}

// measureRTT returns how long the peer takes to answer now, or 0 if it does not answer.
func (c *Conn) measureRTT(ctx context.Context) time.Duration {
	if rtt, err := c.probe.Do(ctx, c.probePeer); err == nil {
		return rtt
	}
	return time.Duration(c.rtt.Load())
}
