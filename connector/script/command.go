package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector/buildlog"
)

// Command is a command line.
type Command struct {
	// Line is for the login shell. The caller quotes it.
	Line string
	// Grace is the time between SIGTERM and SIGKILL when the command is stopped. If zero, 10s.
	Grace time.Duration
	// Stderr receives the standard error as it comes, from one goroutine. If nil it is discarded.
	Stderr io.Writer
}

// Running is a command that StartCommand has started. Read and Write may be called at the same time, each from one
// goroutine; the rest from any.
type Running struct {
	process  *process
	released chan struct{} // closed when stderr shall not wait for its log any more
	stopping sync.Mutex
}

// StartCommand starts a command. ctx bounds the start only. The caller calls Stop. Writing to the Running
// writes to the command's standard input, which ends with Stop; reading reads its standard output.
//
// By a relay it needs no other program. By a session the VM needs a POSIX sh, setsid and grep, among others as
// common; Wait returns a [*MachineError] if one is missing.
func StartCommand(ctx context.Context, starter Starter, c Command) (*Running, error) {
	released := make(chan struct{})
	stderr := c.Stderr
	switch l, isLog := stderr.(*buildlog.Log); {
	case isLog:
		stderr = logWriter{l, released}
	case stderr == nil:
		stderr = io.Discard
	}
	p, err := startCommand(ctx, starter, c, stderr, false)
	if err != nil {
		return nil, err
	}
	return &Running{process: p, released: released}, nil
}

func startCommand(
	ctx context.Context, starter Starter, c Command, stderr io.Writer, framed bool,
) (*process, error) {
	if c.Line == "" {
		return nil, errors.New("run command: it is empty")
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	s := spec{stderr: stderr, grace: c.Grace}
	if isRelay(starter) {
		s.line = c.Line
	} else {
		s.framed = framed
		s.argv = func(mark string) []string { return lineArgv(c.Line, framed, c.Grace, mark) }
	}
	return start(ctx, starter, s)
}

// Read reads the command's standard output, to its end.
func (r *Running) Read(p []byte) (int, error) { return r.process.Read(p) }

// Write writes to the command's standard input.
func (r *Running) Write(p []byte) (int, error) { return r.process.Write(p) }

// Wait waits until the command has ended and returns its exit code, as Run does, or until ctx ends:
// then the error is ctx's cause. Unread output delays the end.
func (r *Running) Wait(ctx context.Context) (code int, err error) {
	if err := r.process.awaitEnd(ctx); err != nil {
		return 0, err
	}
	code, err = r.process.exit()
	return code, lossOf("run command", err)
}

// Stop ends the command, if it runs: SIGTERM to its process group, the grace, SIGKILL. It waits until the
// command is seen gone, not much longer than the grace, and wakes Read and Write. Output must be read, or
// have been given up, meanwhile. Idempotent: later calls wait for the first.
func (r *Running) Stop() {
	r.stopping.Lock()
	defer r.stopping.Unlock()
	defer func() {
		select {
		case <-r.released:
		default:
			close(r.released)
		}
	}()
	if _, told := r.process.stderr.end(); told {
		r.process.close()
		return
	}
	r.process.stop(nil)
}

// RunCommand runs a command with stdin, which may be nil, as its standard input and its standard output
// going to stdout. It returns, and stops the command, as Run does. It does not wait for a Read of
// stdin that is under way at the command's end.
func RunCommand(
	ctx context.Context, starter Starter, c Command, stdin io.Reader, stdout io.Writer,
) (code int, err error) {
	out := openOutputs(ctx, stdout, c.Stderr)
	defer out.close(ctx)
	p, err := startCommand(ctx, starter, c, out.writer(out.stderr), true)
	if err != nil {
		return 0, err
	}
	go feed(p, stdin, out.fail)
	code, err = p.run(ctx, out)
	return code, lossOf("run command", err)
}

// feed copies a command's stdin to its end. It ends when the command does, or with a Read of stdin.
func feed(p *process, stdin io.Reader, fail context.CancelCauseFunc) {
	buf := make([]byte, frameSize)
	for stdin != nil {
		n, err := stdin.Read(buf)
		if _, werr := p.Write(buf[:n]); werr != nil {
			return // the command has ended or takes no more input: its end is the result
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fail(fmt.Errorf("run command: read its standard input: %w", err))
			return
		}
	}
	_ = p.closeWrite() // as above
}
