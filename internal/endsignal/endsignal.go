// Package endsignal turns the signals that end a program into the end of a context ([Until], [Twice]), and into the
// program's exit code ([Code]).
package endsignal

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// All are the signals that end a program: SIGTERM, SIGINT and SIGHUP.
var All = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// Until returns a context that ends with the first signal of All, as the first context of [Twice] does. Later signals
// are ignored until stop, which ends the context and restores the signals' usual effect.
func Until(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, _, stop = Twice(parent, All...)
	return ctx, stop
}

// Twice returns two contexts. ctx ends with the first of the signals in which: the program should end. abort ends with
// the next signal of All: the program must end at once. No signal is lost between the two. The cause of ctx names the
// signal.
//
// If parent ends, so does ctx, and abort ends with the first signal after that. stop ends both, and restores the
// signals' usual effect.
func Twice(parent context.Context, which ...os.Signal) (ctx, abort context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	abort, kill := context.WithCancelCause(context.WithoutCancel(parent))
	signals := make(chan os.Signal, 2)
	for _, s := range All {
		if s != syscall.SIGHUP || !signal.Ignored(s) { // it is ignored if nohup started the program
			signal.Notify(signals, s)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s := <-signals:
				switch {
				case ctx.Err() != nil:
					kill(errSecond)
				case slices.Contains(which, s):
					cancel(received{s})
				}
			case <-abort.Done():
				return
			}
		}
	}()
	return ctx, abort, func() {
		signal.Stop(signals)
		cancel(nil)
		kill(nil)
		<-ended
	}
}

var errSecond = errors.New("a second signal")

// received is the cause of a context that a signal ended.
type received struct{ os.Signal }

func (e received) Error() string { return "signal: " + e.String() }

// Code returns the exit code of a program if a signal ended its ctx: 128 plus the signal's number. Otherwise it returns
// 0.
func Code(ctx context.Context) int {
	var by received
	errors.As(context.Cause(ctx), &by)
	if n, ok := by.Signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 0
}
