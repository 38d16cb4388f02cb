package mux

import (
	"context"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
)

// keepalive ends the connection when the peer has been silent for interval and then gives no sign
// of life for timeout. It is the only code that declares a connection dead; all other waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	ask := func() {
		c.wg.Go(c.ping)
	}
	if err := alive.Watch(c.done, interval, timeout, c.nc.heard, ask); err != nil {
		c.fail("keepalive", err)
	}
}

// ping asks the peer for an answer and takes the time. Any will do, a refusal too. It may block for ever on a
// dead peer; the connection's close ends it.
func (c *Conn) ping() {
	asked := time.Now()
	// An error means that the connection is ending.
	if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err == nil {
		rtt := time.Since(asked)
		c.rtt.Store(int64(rtt))
		c.trace.keepalive(rtt)
	}
}

// measureRTT returns how long an answer of the peer takes now, 0 if there is none.
func (c *Conn) measureRTT(ctx context.Context) time.Duration {
	done := make(chan struct{})
	spawned := c.spawn(func() {
		defer close(done)
		c.ping()
	})
	if !spawned {
		return 0
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	return time.Duration(c.rtt.Load())
}
