// Package endsignal turns the signals that end a program into the end of a context, and into the program's exit code.
package endsignal

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// All are the signals that end a program: SIGTERM, SIGINT and SIGHUP.
var All = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// Until returns a context that ends with the first of the signals. Its cause names the signal. stop ends the context
// and gives the signals back their usual effect.
func Until(ctx context.Context, which ...os.Signal) (_ context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, which...)
	go func() {
		select {
		case s := <-signals:
			cancel(received{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// received is the cause of a context that a signal ended.
type received struct{ os.Signal }

func (e received) Error() string { return "signal: " + e.String() }

// Code returns the exit code of a program whose ctx a signal ended, 128 and the signal's number, or 0.
func Code(ctx context.Context) int {
	by, _ := errors.AsType[received](context.Cause(ctx))
	if n, ok := by.Signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 0
}
