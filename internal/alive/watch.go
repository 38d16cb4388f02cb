// Package alive finds a dead peer by its silence. A [Pulse] records when bytes arrive, and [Watch] asks a silent peer
// for a sign of life. The caller owns the goroutine in which it calls Watch.
package alive

import (
	"fmt"
	"time"
)

// Watch returns an error if the peer is silent for interval and then, after ask, for timeout. It returns nil if done is
// closed first. heard returns the time of the last byte from the peer. A reply queued behind a bulk transfer is late,
// not lost: any byte received counts as a sign of life. ask must not block; it is called again only after a sign of
// life and another silence.
func Watch(done <-chan struct{}, interval, timeout time.Duration, heard func() time.Time, ask func()) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	var asked time.Time // zero if the peer was not asked
	for {
		select {
		case <-done:
			return nil
		case <-timer.C:
		}
		last := heard()
		quiet := time.Since(last)
		switch {
		case asked.IsZero() && quiet < interval:
			timer.Reset(interval - quiet)
		case asked.IsZero():
			asked = time.Now()
			ask()
			timer.Reset(min(timeout, interval)) // after a sign of life the silence starts again
		case last.Before(asked):
			if waited := time.Since(asked); waited < timeout {
				timer.Reset(min(timeout-waited, interval))
				continue
			}
			return fmt.Errorf("no sign of life for %v", quiet.Round(time.Millisecond))
		default: // the peer is alive
			asked = time.Time{}
			timer.Reset(max(interval-quiet, 0))
		}
	}
}
