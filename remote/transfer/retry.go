package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

const (
	maxBackoff = time.Minute
	// maxWait bounds a wait that a server asks for.
	maxWait = 5 * time.Minute
)

// Retry calls try until it succeeds, fails permanently, or has been repeated [Config.Retries] times. The argument n
// counts from 0. Between two calls Retry waits as long as the server asks for, at most 5 minutes, or else with
// exponential backoff. It ends with ctx.
func (c *Client) Retry(ctx context.Context, try func(ctx context.Context, n int) error) error {
	for n := 0; ; n++ {
		err := c.once(ctx, n, try)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !temporary(err):
			return err
		case n >= c.cfg.Retries:
			if n > 0 {
				err = fmt.Errorf("%w (tried %d times)", err, n+1)
			}
			return lastError{err}
		}
		wait := c.backoff(n)
		if status, ok := errors.AsType[*StatusError](err); ok && status.Wait >= 0 {
			wait = min(status.Wait, maxWait)
		}
		c.cfg.Log.Warn(fmt.Sprintf("%v; retry %d of %d in %v", err, n+1, c.cfg.Retries, wait.Round(10*time.Millisecond)))
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
}

// once calls try within the time of one attempt.
func (c *Client) once(ctx context.Context, n int, try func(ctx context.Context, n int) error) error {
	if c.cfg.Timeout > 0 {
		late := fmt.Errorf("the attempt takes longer than --timeout, %v", c.cfg.Timeout)
		bounded, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, late)
		defer cancel()
		ctx = bounded
	}
	return try(ctx, n)
}

// backoff returns how long to wait after attempt n: the time doubles, with a random part of up to a half.
func (c *Client) backoff(n int) time.Duration {
	d := min(c.cfg.RetryTime<<min(n, 16), maxBackoff)
	return d/2 + rand.N(d/2+1)
}
