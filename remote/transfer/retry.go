package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/internal/servercall"
)

// Retry calls try until it succeeds, fails permanently, or has been repeated [Config.Retries] times. The argument n
// counts from 0. Between two calls Retry waits as long as the server asks for, at most 5 minutes, or else with
// exponential backoff. It ends with ctx.
func (c *Client) Retry(ctx context.Context, try func(ctx context.Context, n int) error) error {
	return servercall.Retry{
		Times: c.cfg.Retries, First: c.cfg.RetryTime,
		Check: func(err error) (again bool, wait time.Duration) {
			wait = -1
			if status, ok := errors.AsType[*StatusError](err); ok {
				wait = status.Wait
			}
			return temporary(err), wait
		},
		Waits: func(err error, n int, wait time.Duration) {
			c.cfg.Log.Warn(fmt.Sprintf("%v; retry %d of %d in %v", err, n, c.cfg.Retries, wait.Round(10*time.Millisecond)))
		},
	}.Do(ctx, func(n int) error { return c.once(ctx, n, try) })
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
