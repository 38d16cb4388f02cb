package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"github.com/stepmux/stepmux/connector/buildlog"
)

// Command is a command line to run on the VM.
type Command struct {
	// Line is for the login shell. The caller quotes it.
	Line string
	// Grace is the time between SIGTERM and SIGKILL when the command is stopped. If zero, 10s.
	Grace time.Duration
	// ReadyTimeout is how long the login may take, in a session, to begin what runs the command. If zero, 30s.
	ReadyTimeout time.Duration
	// Stderr receives the standard error as it comes, from one goroutine. If nil it is discarded.
	Stderr io.Writer
	// HalfClose lets Running.CloseWrite end the standard input while the command runs on. In a session this costs
	// some work per byte, because the input is sent in pieces with their lengths; with a relay it costs nothing.
	HalfClose bool
}

// Running is a command that StartCommand has started. Writes go to its standard input, reads come from its standard
// output, with the deadlines of a net.Conn. It is safe for concurrent use.
type Running struct {
	process  *process
	released chan struct{} // closed when stderr shall no longer wait for its log

	reading, writing sync.Mutex // held by Read and by Write

	closeOnce sync.Once
	mu        sync.Mutex    // held to set a deadline, and to close closed
	closed    chan struct{} // closed when Close begins
}

// StartCommand starts a command. ctx bounds the start only. The caller calls Close, which ends the command's standard
// input.
//
// With a relay no other program is needed. In a session the VM needs dash, bash or BusyBox as its sh, setsid, grep
// and other common tools; if one is missing, Wait returns a [*MachineError].
func StartCommand(ctx context.Context, starter Starter, c Command) (*Running, error) {
	released := make(chan struct{})
	stderr := c.Stderr
	switch l, isLog := stderr.(*buildlog.Log); {
	case isLog:
		stderr = logWriter{l, released}
	case stderr == nil:
		stderr = io.Discard
	}
	p, err := startCommand(ctx, starter, c, stderr, c.HalfClose)
	if err != nil {
		return nil, err
	}
	return &Running{process: p, released: released, closed: make(chan struct{})}, nil
}

func startCommand(ctx context.Context, starter Starter, c Command, stderr io.Writer, framed bool) (*process, error) {
	if c.Line == "" {
		return nil, errors.New("run command: the command line is empty")
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	s := spec{line: c.Line, stderr: stderr, grace: c.Grace} // its stdin can end early
	if !isRelay(starter) {
		s = spec{
			argv: lineArgv(c.Line, framed, c.Grace, newMark()), name: c.Line, framed: framed,
			stderr: stderr, grace: c.Grace, ready: c.ReadyTimeout,
		}
	}
	return start(ctx, starter, s)
}

// Read reads the command's standard output, to its end. After Close the error is net.ErrClosed.
func (r *Running) Read(p []byte) (int, error) { return r.do(&r.reading, r.process.Read, p) }

// Write writes to the command's standard input. After Close the error is net.ErrClosed.
func (r *Running) Write(p []byte) (int, error) { return r.do(&r.writing, r.process.Write, p) }

func (r *Running) do(one *sync.Mutex, transfer func([]byte) (int, error), p []byte) (n int, err error) {
	one.Lock()
	defer one.Unlock()
	if !r.isClosed() {
		n, err = transfer(p)
	}
	if r.isClosed() {
		return n, net.ErrClosed
	}
	return n, err
}

func (r *Running) isClosed() bool { return pause.Done(r.closed) }

// SetDeadline sets the deadlines of Read and of Write.
func (r *Running) SetDeadline(t time.Time) error { return r.set(r.process.remote.SetDeadline, t) }

// SetReadDeadline sets the deadline of Read.
func (r *Running) SetReadDeadline(t time.Time) error {
	return r.set(r.process.remote.SetReadDeadline, t)
}

// SetWriteDeadline sets the deadline of Write.
func (r *Running) SetWriteDeadline(t time.Time) error {
	return r.set(r.process.remote.SetWriteDeadline, t)
}

func (r *Running) set(deadline func(time.Time) error, t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed() {
		return net.ErrClosed
	}
	return deadline(t)
}

// CloseWrite ends the command's standard input, after all that Write has sent. It waits for a Write that is under
// way. Without Command.HalfClose, and without a relay, it ends the command itself.
func (r *Running) CloseWrite() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.isClosed() {
		return net.ErrClosed
	}
	return r.process.closeWrite()
}

// Signal sends a signal to the command's process group. name is that of RFC 4254, section 6.10, such as "TERM".
// Without a relay, HUP, INT, QUIT, TERM and KILL end the command as Close does, though its output can still be read;
// Signal then returns when the command is gone. Other signals are an error without a relay.
func (r *Running) Signal(name string) error {
	if r.isClosed() {
		return net.ErrClosed
	}
	if r.process.native {
		return r.process.remote.Signal(name)
	}
	switch name {
	case "HUP", "INT", "QUIT", "TERM", "KILL":
		r.process.stop(nil)
		return nil
	default:
		return fmt.Errorf("signal %.32q: without a relay on the VM a command can only be ended", name)
	}
}

// Wait waits until the command has ended and returns its exit code, as Run does. If ctx ends first, the error is
// ctx's cause. Unread output delays the command's end.
func (r *Running) Wait(ctx context.Context) (code int, err error) {
	if err := r.process.awaitEnd(ctx); err != nil {
		return 0, err
	}
	code, err = r.process.exit()
	return code, lossOf("run command", err)
}

// Close ends the command if it runs: SIGTERM to its process group, the grace, SIGKILL. It wakes Read and Write and
// discards the rest of the output. It waits until the command is gone, not much longer than the grace. Idempotent:
// later calls wait for the first. It returns nil.
func (r *Running) Close() error {
	r.closeOnce.Do(func() {
		remote := r.process.remote
		r.mu.Lock()
		close(r.closed)
		_ = remote.SetDeadline(time.Unix(1, 0)) // fails only if the channel is closed, like the next
		r.mu.Unlock()
		for _, call := range []*sync.Mutex{&r.reading, &r.writing} {
			call.Lock()   // soon: its deadline has passed
			call.Unlock() //nolint:staticcheck // only the wait is needed
		}
		_ = remote.SetDeadline(time.Time{})
		var reading sync.WaitGroup
		reading.Go(func() { _ = drain(r.process, io.Discard) }) // unread output would block the process
		if _, told := r.process.stderr.end(); told {
			r.process.close()
		} else {
			r.process.stop(nil)
		}
		close(r.released)
		reading.Wait()
	})
	return nil
}

// RunCommand runs a command. stdin, which may be nil, is its standard input; stdout receives its standard output.
// RunCommand returns, and stops the command, as Run does. It does not wait for a Read of stdin that is under way when
// the command ends.
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

// feed copies stdin to a command, up to the end of either. A Read of stdin may delay its return.
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
	_ = p.closeWrite() // as for Write above: the command's end is the result
}
