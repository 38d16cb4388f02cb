// Package alive finds out that a peer is dead by its silence.
package alive

import (
	"fmt"
	"time"
)

// Watch returns an error when the peer has been silent for interval and then, asked for a sign of life,
// gives none for timeout; nil when done is closed first. heard returns when anything was last heard of the peer:
// any byte is a sign of life, so a slow answer behind a bulk transfer is none of death's. ask must not
// block; it is called again only after a sign of life and another silence.
func Watch(done <-chan struct{}, interval, timeout time.Duration, heard func() time.Time, ask func()) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	var asked time.Time // zero: the peer need not prove anything
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
			timer.Reset(min(timeout, interval)) // a sign of life starts the silence anew
		case last.Before(asked):
			if waited := time.Since(asked); waited < timeout {
				timer.Reset(min(timeout-waited, interval))
				continue
			}
			return fmt.Errorf("no sign of life for %v", quiet.Round(time.Millisecond))
		default: // it lives
			asked = time.Time{}
			timer.Reset(max(interval-quiet, 0))
		}
	}
}
