package connector

import (
	"context"
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
	// Stdout and Stderr receive the output as it comes, each from one goroutine. If nil it is discarded.
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
	stderr := &firstError{w: s.Stderr, failed: make(chan error, 1)}
	process, err := starter.Start(ctx, mux.Command{Argv: scriptArgv(s.Shell, len(s.Text), s.Grace), Stderr: stderr})
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
	wg.Go(func() {
		// What could not be sent shows in the exit code. stdin stays open: it is the leash.
		_, _ = process.Write(s.Text)
	})
	logFailed := stderr.failed
	drained := make(chan struct{})
	wg.Go(func() {
		defer close(drained)
		drain(process, s.Stdout, logFailed)
	})
	stop := func() {
		// What it waits for, a write to a VM that takes nothing, the Close above ends.
		wg.Go(func() { _ = process.CloseWrite() }) // an error means that it has ended
		awaitExit(process, s.Grace+stopMargin)
	}

	select {
	case <-process.Exited():
		<-drained // soon: the channel has ended
	case err := <-logFailed:
		stop()
		return 0, err
	case <-ctx.Done():
		stop()
		return 0, ctx.Err()
	}
	select {
	case err := <-logFailed:
		return 0, err
	default:
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

// drain copies a process's stdout to its end. A log that fails is reported once, the rest discarded:
// what is not read would hold up the process.
func drain(from io.Reader, to io.Writer, failed chan<- error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && to != nil {
			if _, werr := to.Write(buf[:n]); werr != nil {
				report(failed, &LogError{werr})
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// firstError passes writes on and reports the first that fails.
type firstError struct {
	w      io.Writer
	failed chan error // has room for one
}

func (f *firstError) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		report(f.failed, &LogError{err})
	}
	return n, err
}

// report sends err unless one is there already.
func report(to chan<- error, err error) {
	select {
	case to <- err:
	default:
	}
}
