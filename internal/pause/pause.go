// Package pause waits for a time or for a state, or until a context ends.
package pause

import (
	"context"
	"time"
)

// For waits for d. If ctx ends first, it returns the cause. It is safe for concurrent use.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Until calls is until it reports true, returns an error, or ctx ends; then the error is ctx's cause. The pause between
// two calls grows from 1 to 20 ms. It is for states that no event reports, such as the release of a lock by flock(2).
func Until(ctx context.Context, is func() (bool, error)) error {
	wait := time.Millisecond
	for {
		if so, err := is(); so || err != nil {
			return err
		}
		if err := For(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// Done reports whether done is closed. It does not wait.
func Done(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
