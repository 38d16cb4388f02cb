package script

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/stepmux/stepmux/connector/buildlog"
)

// outputs are the two logs of a script or a command.
type outputs struct {
	stdout, stderr *buildlog.Log
	closers        []func(context.Context) // of the logs that openOutputs made

	failed context.Context // ends when a log fails, or with an error given to fail
	fail   context.CancelCauseFunc
	forget []func() bool

	released    chan struct{} // closed when writers shall not wait for a log any more
	releaseOnce sync.Once
}

// openOutputs makes logs of two Writers, each of which may be nil. The caller calls close.
func openOutputs(ctx context.Context, stdout, stderr io.Writer) *outputs {
	o := &outputs{released: make(chan struct{})}
	o.failed, o.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	o.stdout = o.open(stdout)
	o.stderr = o.open(stderr)
	return o
}

func (o *outputs) open(w io.Writer) *buildlog.Log {
	if w == nil {
		w = io.Discard
	}
	l, closeLog := buildlog.Of(w, 0)
	o.closers = append(o.closers, closeLog)
	o.forget = append(o.forget, l.OnFailure(o.fail))
	return l
}

// writer returns a Writer to one of the logs that waits for it until release.
func (o *outputs) writer(l *buildlog.Log) io.Writer { return logWriter{l, o.released} }

// failure returns the cause of failed.
func (o *outputs) failure() error { return context.Cause(o.failed) }

// flush waits until the logs have written all output.
func (o *outputs) flush(ctx context.Context) error {
	err := errors.Join(o.stdout.Flush(ctx), o.stderr.Flush(ctx))
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// release wakes the writers that wait for a log. Idempotent.
func (o *outputs) release() { o.releaseOnce.Do(func() { close(o.released) }) }

// close delivers the output so far, even if ctx has ended, and closes the logs that openOutputs made.
func (o *outputs) close(ctx context.Context) {
	o.release()
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

// logWriter writes to a log and waits for it until done is closed.
type logWriter struct {
	log  *buildlog.Log
	done <-chan struct{}
}

func (w logWriter) Write(p []byte) (int, error) { return w.log.WriteUntil(w.done, p) }

// drain copies a process's stdout to its end and returns its error, nil for io.EOF. When the Writer fails the rest is
// read and discarded: unread output would block the process.
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
