// Package flight shares one piece of work among all callers that want its result at the same time (single flight),
// and keeps the result for as long as the work says that it holds.
//
// The work runs detached: it survives the caller that started it. The owner of a [Flight] ends it with Close.
package flight

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

// ErrClosed is the result of a Flight after Close.
var ErrClosed = errors.New("flight: closed")

// errAbandoned ends work whose callers have all left.
var errAbandoned = errors.New("flight: no caller waits for the result")

// Work computes a result and says how long it may be kept: forever if keep is negative; if keep is zero, only for the
// callers that wait for it now. That also applies to an error.
type Work[T any] func(ctx context.Context) (result T, keep time.Duration, err error)

// Flight shares the result of work among its callers. The zero value is ready. It is safe for concurrent use.
type Flight[T any] struct {
	// GoOn lets work finish after its last caller has left. If false, the ctx of the work ends then.
	GoOn bool
	// Holds reports whether a kept result without an error is still valid. If nil, only the time decides. It is called
	// with the Flight's lock held.
	Holds func(result T) bool

	mu     sync.Mutex // guards the following
	now    *call[T]   // under way or kept; otherwise nil
	closed bool
	wg     sync.WaitGroup
}

type call[T any] struct {
	cancel  context.CancelCauseFunc // nil unless a goroutine of the Flight does the work
	done    chan struct{}           // closed once the following are set
	result  T
	err     error
	forever bool
	until   time.Time

	waiters int // guarded by Flight.mu
}

func (c *call[T]) ended() bool { return pause.Done(c.done) }

// freshLocked reports whether the call is under way, or has a result that still holds.
func (f *Flight[T]) freshLocked(c *call[T]) bool {
	if !c.ended() {
		return true
	}
	holds := c.err != nil || f.Holds == nil || f.Holds(c.result)
	return holds && (c.forever || time.Now().Before(c.until))
}

// Do returns the kept result if it is still valid, joins the work that is under way, or starts work in a goroutine of
// the Flight. The ctx of the work has the values of the first caller's ctx, but not its end. When ctx ends before the
// result is there, Do returns its cause. Unless GoOn is set, the last caller first ends the work, and waits for its
// return.
func (f *Flight[T]) Do(ctx context.Context, work Work[T]) (T, error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		var zero T
		return zero, ErrClosed
	}
	c := f.now
	if c == nil || !f.freshLocked(c) {
		c = f.startLocked(ctx, work)
	}
	c.waiters++
	f.mu.Unlock()
	defer f.leave(c)
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// Start starts work, unless it is under way or its result is kept, and does not wait.
func (f *Flight[T]) Start(ctx context.Context, work Work[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed && (f.now == nil || !f.freshLocked(f.now)) {
		f.startLocked(ctx, work)
	}
}

func (f *Flight[T]) startLocked(ctx context.Context, work Work[T]) *call[T] {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &call[T]{cancel: cancel, done: make(chan struct{})}
	f.now = c
	f.wg.Go(func() {
		defer cancel(nil)
		defer close(c.done)
		var keep time.Duration
		c.result, keep, c.err = work(ctx)
		c.forever, c.until = keep < 0, time.Now().Add(keep)
	})
	return c
}

// leave ends a caller's wait. The last caller ends the work, waits for its return, and forgets it.
func (f *Flight[T]) leave(c *call[T]) {
	f.mu.Lock()
	c.waiters--
	abandoned := c.waiters == 0 && !c.ended() && c.cancel != nil && !f.GoOn
	if abandoned && f.now == c {
		f.now = nil
	}
	f.mu.Unlock()
	if abandoned {
		c.cancel(errAbandoned)
		<-c.done
	}
}

// Claim lets the caller do the work itself. The caller calls report with the result; only the first call counts. report
// is nil if a result is kept or other work is under way.
func (f *Flight[T]) Claim() (report func(result T, keep time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.now != nil && f.freshLocked(f.now) {
		return nil
	}
	c := &call[T]{done: make(chan struct{})}
	f.now = c
	var once sync.Once
	return func(result T, keep time.Duration) {
		once.Do(func() {
			c.result, c.forever, c.until = result, keep < 0, time.Now().Add(keep)
			close(c.done)
		})
	}
}

// Wait waits for work that is under way, if there is any. When ctx ends first it returns its cause.
func (f *Flight[T]) Wait(ctx context.Context) error {
	f.mu.Lock()
	c := f.now
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Kept returns the kept result, if there is one and it is still valid.
func (f *Flight[T]) Kept() (result T, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.now; c != nil && c.ended() && f.freshLocked(c) {
		return c.result, c.err == nil
	}
	return result, false
}

// Set keeps a result that was found by other means. It replaces the kept result and the work under way.
func (f *Flight[T]) Set(result T, keep time.Duration) {
	c := &call[T]{done: make(chan struct{}), result: result, forever: keep < 0, until: time.Now().Add(keep)}
	close(c.done)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = c
}

// Forget drops the kept result. Callers of work that is under way still get its result; later callers start new work.
func (f *Flight[T]) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = nil
}

// Close ends the work that is under way and waits for it. Waiting callers get the result that the work then returns;
// later calls of Do return ErrClosed. It is idempotent.
func (f *Flight[T]) Close() {
	f.mu.Lock()
	f.closed = true
	if f.now != nil && f.now.cancel != nil {
		f.now.cancel(ErrClosed)
	}
	f.mu.Unlock()
	f.wg.Wait()
}
