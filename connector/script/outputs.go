package script

import (
	"context"
	"errors"
	"io"

	"github.com/stepmux/stepmux/connector/buildlog"
)

// outputs are the two logs of a script or a command.
type outputs struct {
	stdout, stderr *buildlog.Log
	closers        []func(context.Context) // for the logs that openOutputs made

	failed context.Context // ends when a log fails, or with an error given to fail
	fail   context.CancelCauseFunc

	released context.Context // ends when writers shall no longer wait for a log
	release  context.CancelFunc
}

// openOutputs makes logs for two Writers. Each may be nil. The caller calls close.
func openOutputs(ctx context.Context, stdout, stderr io.Writer) *outputs {
	o := &outputs{}
	o.failed, o.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	o.released, o.release = context.WithCancel(context.WithoutCancel(ctx))
	o.stdout = o.open(stdout)
	o.stderr = o.open(stderr, o.stdout)
	return o
}

func (o *outputs) open(w io.Writer, others ...*buildlog.Log) *buildlog.Log {
	l, closeLog := buildlog.Of(w, 0, others...)
	o.closers = append(o.closers, closeLog)
	forget := l.OnFailure(o.fail)
	context.AfterFunc(o.failed, func() { forget() })
	return l
}

// writer returns a Writer to one of the logs that waits for it until release.
func (o *outputs) writer(l *buildlog.Log) io.Writer { return logWriter{l, o.released.Done()} }

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

// close delivers the output received so far, even if ctx has ended, and closes the logs that openOutputs made.
func (o *outputs) close(ctx context.Context) {
	o.release()
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

// drain copies a process's stdout to its end and returns the error, nil for io.EOF. If the Writer fails, drain reads
// and discards the rest: unread output would block the process.
func drain(from *process, to io.Writer) error {
	_, err := io.Copy(to, from)
	if err != nil { // the Writer's error, or one that each later Read returns, too
		_, err = io.Copy(io.Discard, from)
	}
	return err
}
