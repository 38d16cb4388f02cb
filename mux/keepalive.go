package mux

import (
	"fmt"
	"time"
)

// keepalive ends the connection when the peer has been silent for interval and then gives no sign
// of life for timeout. Any byte from the peer is a sign of life, so a slow answer behind a bulk
// transfer is none of death's. It is the only code that declares a connection dead; all other
// waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	answers := make(chan time.Duration, 1)
	for {
		select {
		case <-c.done:
			return
		case <-timer.C:
		}
		if quiet := time.Since(c.nc.heard()); quiet < interval {
			timer.Reset(interval - quiet)
			continue
		}
		asked := time.Now()
		c.wg.Go(func() {
			// Any reply will do, a refusal too. The request may block for ever on a dead peer; it is
			// ended by the connection's close. An error means the connection is ending.
			if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err == nil {
				answers <- time.Since(asked)
			}
		})
		if !c.awaitAnswer(answers, asked, timeout) {
			return
		}
		timer.Reset(interval)
	}
}

// awaitAnswer waits for the answer to the request sent at asked, as long as the peer shows life. It
// returns false when the connection has ended, by its word or another's.
func (c *Conn) awaitAnswer(answers <-chan time.Duration, asked time.Time, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return false
		case rtt := <-answers:
			c.rtt.Store(int64(rtt))
			return true
		case <-timer.C:
		}
		last := c.nc.heard()
		if last.Before(asked) || time.Since(last) >= timeout {
			c.fail("keepalive", fmt.Errorf("no sign of life for %v", time.Since(last).Round(time.Millisecond)))
			return false
		}
		timer.Reset(timeout - time.Since(last))
	}
}
