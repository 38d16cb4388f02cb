package fetch

import (
	"context"
	"time"
)

// poll calls try until it reports done, fails, or ctx ends, with a pause that grows from 1 to 20 ms. flock has no wait
// that a context could end.
func poll(ctx context.Context, try func() (done bool, err error)) error {
	pause := time.Millisecond
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}
