package connector

import (
	"context"
	"errors"
	"io"
	"sync"
)

// outputs are the logs of something that runs without a step runner.
type outputs struct {
	stdout, stderr *Log
	closers        []func(context.Context) // of those that are ours

	failed context.Context // ends when a log fails, or with what is given to fail
	fail   context.CancelCauseFunc
	forget []func() bool

	over     chan struct{} // closed when nobody waits for a log any more
	overOnce sync.Once
}

// openOutputs makes logs of two Writers, of which either may be nil. The caller calls close.
func openOutputs(ctx context.Context, stdout, stderr io.Writer) *outputs {
	o := &outputs{over: make(chan struct{})}
	o.failed, o.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	o.stdout = o.open(stdout)
	o.stderr = o.open(stderr)
	return o
}

func (o *outputs) open(w io.Writer) *Log {
	if w == nil {
		w = io.Discard
	}
	l, closeLog := logOf(w, 0)
	o.closers = append(o.closers, closeLog)
	o.forget = append(o.forget, endWithLog(l, o.fail))
	return l
}

// writer returns what writes to one of the logs and waits for it until giveUp.
func (o *outputs) writer(l *Log) io.Writer { return patientWriter{l, o.over} }

// failure returns why one of the logs failed, or what was given to fail.
func (o *outputs) failure() error { return context.Cause(o.failed) }

// flush waits until the logs have all that was written.
func (o *outputs) flush(ctx context.Context) error {
	err := errors.Join(o.stdout.flush(ctx), o.stderr.flush(ctx))
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// giveUp wakes the writers that wait for a log. Idempotent.
func (o *outputs) giveUp() { o.overOnce.Do(func() { close(o.over) }) }

// close delivers what came, also if ctx has ended, and lets go of the logs.
func (o *outputs) close(ctx context.Context) {
	o.giveUp()
	for _, forget := range o.forget {
		forget()
	}
	o.fail(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMargin)
	defer cancel()
	for _, closeLog := range o.closers {
		closeLog(ctx)
	}
}

// patientWriter writes to a log and waits for it until done is closed.
type patientWriter struct {
	log  *Log
	done <-chan struct{}
}

func (w patientWriter) Write(p []byte) (int, error) { return w.log.write(w.done, p) }

// drain copies a process's stdout to its end, and returns why it has ended if that is not io.EOF. What a log does not
// take is discarded: what is not read would hold up the process.
func drain(from io.Reader, to io.Writer) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && to != nil {
			if _, werr := to.Write(buf[:n]); werr != nil {
				to = nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
