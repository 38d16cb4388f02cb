package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Command is a command line to be run on a VM without a step runner.
type Command struct {
	// Line is for the login shell. The caller quotes it.
	Line string
	// Grace is the time between SIGTERM and SIGKILL when the command is stopped. If zero, 10s.
	Grace time.Duration
	// Stderr receives the standard error as it comes, from one goroutine. If nil it is discarded.
	Stderr io.Writer
}

// Running is a command on a VM that was started by StartCommand. Read and Write may be called at the same
// time, each from one goroutine; the rest from any.
type Running struct {
	g        *guarded
	over     chan struct{} // closed once nobody waits for its log any more
	stopping sync.Mutex
}

// StartCommand starts a command. ctx bounds the start only. The caller calls Stop. Writing to the Running
// writes to the command's standard input, which ends with Stop; reading reads its standard output.
//
// A relay starts it by itself. A session's login shell needs a POSIX sh, setsid and grep, among others as
// common; Wait has a [*MachineError] if something is missing.
func StartCommand(ctx context.Context, starter Starter, c Command) (*Running, error) {
	over := make(chan struct{})
	stderr := c.Stderr
	switch l, isLog := stderr.(*Log); {
	case isLog:
		stderr = patientWriter{l, over}
	case stderr == nil:
		stderr = io.Discard
	}
	g, err := startCommand(ctx, starter, c, stderr, false)
	if err != nil {
		return nil, err
	}
	return &Running{g: g, over: over}, nil
}

func startCommand(ctx context.Context, starter Starter, c Command, stderr io.Writer, framed bool) (*guarded, error) {
	if c.Line == "" {
		return nil, errors.New("run command: it is empty")
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	spec := guardSpec{stderr: stderr, grace: c.Grace}
	if isRelay(starter) {
		spec.line = c.Line
	} else {
		spec.framed = framed
		spec.argv = func(mark string) []string { return lineArgv(c.Line, framed, c.Grace, mark) }
	}
	return startGuarded(ctx, starter, spec)
}

// Read reads the command's standard output, to its end.
func (r *Running) Read(p []byte) (int, error) { return r.g.Read(p) }

// Write writes to the command's standard input.
func (r *Running) Write(p []byte) (int, error) { return r.g.Write(p) }

// Wait waits until the command has ended and returns its exit code, as RunScript does, or until ctx ends:
// then the error is ctx's cause. Output that nobody reads holds the end up.
func (r *Running) Wait(ctx context.Context) (code int, err error) {
	if err := r.g.over(ctx); err != nil {
		return 0, err
	}
	code, err = r.g.exit()
	return code, runError("run command", err)
}

// Stop ends the command, if it runs: SIGTERM to its process group, the grace, SIGKILL. It waits until the
// command is seen gone, not much longer than the grace, and wakes Read and Write. Output must be read, or
// have been given up, meanwhile. Idempotent: later calls wait for the first.
func (r *Running) Stop() {
	r.stopping.Lock()
	defer r.stopping.Unlock()
	defer func() {
		select {
		case <-r.over:
		default:
			close(r.over)
		}
	}()
	if _, told := r.g.err.end(); told {
		r.g.close()
		return
	}
	r.g.stop(nil)
}

// RunCommand runs a command with stdin, which may be nil, as its standard input and its standard output
// going to stdout. It returns, and stops the command, as RunScript does. It does not wait for a Read of
// stdin that is under way at the command's end.
func RunCommand(ctx context.Context, starter Starter, c Command, stdin io.Reader, stdout io.Writer) (code int, err error) {
	out := openOutputs(ctx, stdout, c.Stderr)
	defer out.close(ctx)
	g, err := startCommand(ctx, starter, c, out.writer(out.stderr), true)
	if err != nil {
		return 0, err
	}
	go feed(g, stdin, out.fail)
	code, err = g.run(ctx, out)
	return code, runError("run command", err)
}

// feed copies a command's stdin to its end. It ends when the command does, or with a Read of stdin.
func feed(g *guarded, stdin io.Reader, fail context.CancelCauseFunc) {
	buf := make([]byte, frameSize)
	for stdin != nil {
		n, err := stdin.Read(buf)
		if _, werr := g.Write(buf[:n]); werr != nil {
			return // the command has ended, or takes no more: its end tells
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fail(fmt.Errorf("run command: read its standard input: %w", err))
			return
		}
	}
	_ = g.closeWrite() // as above
}
