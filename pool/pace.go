package pool

import (
	"context"
	"math/rand/v2"
	"time"
)

// pacer bounds the dials of all keys together, in number and pace. Who waits is served in order.
type pacer struct {
	slots   chan struct{} // holds one token for each dial under way
	gate    chan struct{} // holds one token while somebody waits out the spacing
	spacing time.Duration
	last    time.Time // when the last dial started; whoever holds the gate may touch it
}

func newPacer(slots int, spacing time.Duration) *pacer {
	return &pacer{slots: make(chan struct{}, slots), gate: make(chan struct{}, 1), spacing: spacing}
}

// enter waits until one more dial may start. The caller calls leave when the dial is over. If ctx
// ends first, enter returns its cause and has left no mark: those behind do not wait for the turn
// that was not taken.
func (f *pacer) enter(ctx context.Context) error {
	if err := put(ctx, f.slots); err != nil {
		return err
	}
	if f.spacing == 0 {
		return nil
	}
	err := put(ctx, f.gate)
	if err == nil {
		if err = waitUntil(ctx, f.last.Add(f.spacing)); err == nil {
			f.last = time.Now()
		}
		<-f.gate
	}
	if err != nil {
		f.leave()
	}
	return err
}

// leave gives back what enter took.
func (f *pacer) leave() { <-f.slots }

// put waits until tokens has room for one more.
func put(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitUntil waits until t.
func waitUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backoff returns the pause after the n-th failure in a row, n from 1: base doubled n-1 times, at
// most limit, less up to half of it at random.
func backoff(base, limit time.Duration, n int) time.Duration {
	d := min(base, limit)
	for i := 1; i < n && d < limit; i++ {
		d += min(d, limit-d)
	}
	return d - rand.N(d/2+1)
}
