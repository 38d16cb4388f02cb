package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/mux"
)

// stopMargin is what a script's end may take beyond its grace when it is cancelled.
const stopMargin = 5 * time.Second

// Script is a shell script to be run on a VM without a step runner.
type Script struct {
	// Shell is the shell's command, to which Text is given on stdin. If empty, bash.
	Shell []string
	// Text is the script. It travels on stdin, never on a command line.
	Text []byte
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped, in whole seconds. If
	// zero, 10s.
	Grace time.Duration
	// Stdout and Stderr receive the output as it comes, each by a [Log] of its own if it is none itself. If nil it
	// is discarded.
	Stdout, Stderr io.Writer
}

// RunScript runs s, started by starter, and returns its exit code (128
// plus the signal's number if one ended it). The shell needs a POSIX sh, mktemp, head and setsid beside
// it.
//
// When ctx ends the shell's session gets SIGTERM and after the grace SIGKILL; RunScript waits for that
// and returns ctx.Err(). The same happens on the VM when the connection is lost or this program is
// killed. The error is else a [*LogError], a [*mux.ConnError] or a [*mux.RelayError].
func RunScript(ctx context.Context, starter Starter, s Script) (code int, err error) {
	if len(s.Shell) == 0 {
		s.Shell = []string{"bash"}
	}
	if s.Grace <= 0 {
		s.Grace = defaultGrace
	}
	if s.Stdout == nil {
		s.Stdout = io.Discard
	}
	if s.Stderr == nil {
		s.Stderr = io.Discard
	}
	stdout, closeStdout := logOf(s.Stdout, 0)
	stderr, closeStderr := logOf(s.Stderr, 0)
	logs, logFailed := context.WithCancelCause(context.WithoutCancel(ctx))
	defer logFailed(nil)
	defer endWithLog(stdout, logFailed)()
	defer endWithLog(stderr, logFailed)()
	defer func() { // what came is delivered, also if it was stopped
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMargin)
		defer cancel()
		closeStdout(last)
		closeStderr(last)
	}()
	over := make(chan struct{}) // nobody waits for a log any more

	process, err := starter.Start(ctx, mux.Command{Argv: scriptArgv(s.Shell, len(s.Text), s.Grace), Stderr: patientWriter{stderr, over}})
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return 0, err
	}
	defer process.Close()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer process.Close() // wakes both
	defer close(over)
	wg.Go(func() {
		// What could not be sent shows in the exit code. stdin stays open: it is the leash.
		_, _ = process.Write(s.Text)
	})
	ended := make(chan struct{}) // closed once its output is delivered and its end is known
	wg.Go(func() {
		defer close(ended)
		drain(process, patientWriter{stdout, over})
		select {
		case <-process.Exited():
		case <-over:
		}
	})
	stop := func() {
		// What it waits for, a write to a VM that takes nothing, the Close above ends.
		wg.Go(func() { _ = process.CloseWrite() }) // an error means that it has ended
		awaitExit(process, s.Grace+stopMargin)
	}

	select {
	case <-ended:
	case <-logs.Done():
		stop()
		return 0, context.Cause(logs)
	case <-ctx.Done():
		stop()
		return 0, ctx.Err()
	}
	if err := errors.Join(stdout.flush(ctx), stderr.flush(ctx)); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return 0, err
	}
	err = process.Err()
	if code := exitCode(err); code >= 0 {
		return code, nil
	}
	return 0, fmt.Errorf("run script: %w", err)
}

// awaitExit waits for a process's end, but not for long.
func awaitExit(process *mux.Process, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-process.Exited():
	case <-timer.C:
	}
}

// drain copies a process's stdout to its end. What a log does not take is discarded: what is not read would hold
// up the process.
func drain(from io.Reader, to io.Writer) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && to != nil {
			if _, werr := to.Write(buf[:n]); werr != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// patientWriter writes to a log and waits for it until done is closed.
type patientWriter struct {
	log  *Log
	done <-chan struct{}
}

func (w patientWriter) Write(p []byte) (int, error) { return w.log.write(w.done, p) }
