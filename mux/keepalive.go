package mux

import (
	"time"

	"github.com/stepmux/stepmux/internal/alive"
)

// keepalive ends the connection when the peer has been silent for interval and then gives no sign
// of life for timeout. It is the only code that declares a connection dead; all other waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	ask := func() {
		asked := time.Now()
		c.wg.Go(func() {
			// Any reply will do, a refusal too. The request may block for ever on a dead peer; it is
			// ended by the connection's close. An error means the connection is ending.
			if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err == nil {
				c.rtt.Store(int64(time.Since(asked)))
			}
		})
	}
	if err := alive.Watch(c.done, interval, timeout, c.nc.heard, ask); err != nil {
		c.fail("keepalive", err)
	}
}
