package fetch

import (
	"context"
	"time"
)

// poll calls try until it reports done, fails, or ctx ends. The pause grows from 1 to 20 ms. It exists because a
// context cannot end a waiting flock.
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
