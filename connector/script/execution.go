package script

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

const (
	// stopMargin is how long, after the grace, a process that is being stopped is waited for.
	stopMargin = 750 * time.Millisecond
	// stuckInput is how long sending the end of stdin may take.
	stuckInput = 250 * time.Millisecond
	// closeDelay is how long a channel may stay open after the process reported its end: processes that were left
	// behind and not found may keep it open.
	closeDelay = 2 * time.Second
	// maxBefore bounds the output of a login before it begins a wrapper.
	maxBefore = 256 << 10
	// frameSize is the largest piece of a framed stdin.
	frameSize = 64 << 10
)

// process is a process on the VM that ends with its channel. `steps script` or a wrapper runs it and reports its end;
// a native process is run by the relay itself.
type process struct {
	remote *mux.Process
	grace  time.Duration
	native bool
	framed bool // stdin is sent in pieces with their lengths

	stdout *wire.EndScanner // used by Read only, and so is rest
	rest   []byte
	stderr *stderrScanner

	closed chan struct{} // closed once its channel is closed
	shut   func()        // closes the channel. Idempotent
}

// spec describes a process to start.
type spec struct {
	argv   []string
	name   string // what argv runs, for people
	line   string // replaces argv: native, run by the login shell
	framed bool
	stderr io.Writer
	grace  time.Duration
	ready  time.Duration // for a login to begin argv. If zero, defaultReadyTimeout
}

// start starts a process. The caller calls run, close or stop. In a session it waits until the login has begun the
// wrapper: another program must not read what follows.
func start(ctx context.Context, starter Starter, s spec) (*process, error) {
	key := newKey()
	p := &process{
		grace:  s.grace,
		native: s.line != "",
		framed: s.framed,
		stdout: wire.NewEndScanner(key),
		stderr: &stderrScanner{to: s.stderr, scanner: wire.NewEndScanner(key), told: make(chan struct{})},
		closed: make(chan struct{}),
	}
	cmd := mux.Command{Line: s.line, Stderr: s.stderr}
	if !p.native {
		cmd.Argv, cmd.Stderr = s.argv, p.stderr
	}
	p.shut = sync.OnceFunc(func() {
		close(p.closed)
		_ = p.remote.Close() // always nil
	})
	var err error
	if p.remote, err = starter.Start(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if !p.native {
		defer context.AfterFunc(ctx, func() { p.remote.Close() })() // stops a write that the peer does not accept
		_, _ = io.WriteString(p.remote, key+"\n")                   // a failure shows up as the process's end
	}
	if !isRelay(starter) {
		if err := p.begin(ctx, s); err != nil {
			p.shut()
			return nil, err
		}
	}
	return p, nil
}

// begin waits for the wrapper's first line. Read returns the login's output before that line.
func (p *process) begin(ctx context.Context, s spec) error {
	wait := cmp.Or(s.ready, defaultReadyTimeout)
	life := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("no answer within %v", wait))
	defer cancel()
	late := context.AfterFunc(ctx, p.shut)
	var err error
	for buf := make([]byte, 4<<10); err == nil && !p.stdout.Begun() && len(p.rest) <= maxBefore; {
		var n int
		n, err = p.remote.Read(buf)
		p.rest = append(p.rest, p.stdout.Scan(buf[:n])...)
	}
	if p.stdout.Begun() && late() {
		return nil
	}
	switch {
	case len(p.rest) > maxBefore:
		err = fmt.Errorf("the command printed more than %d bytes", maxBefore)
	case errors.Is(err, io.EOF):
		err = p.remote.Wait(ctx)
	}
	late()
	switch {
	case life.Err() != nil:
		return life.Err()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case mux.IsLost(err):
		return err
	case err == nil:
		err = errors.New("exit status 0")
	}
	p.stderr.flush()
	said, err := program.NotRun(s.name, err, append(p.rest, p.stdout.Rest()...), p.stderr.tail.String())
	return &MachineError{Stage: stageLogin, Text: said, Hint: program.Advice(said, program.NotRunHint), Err: err}
}

// newKey returns an unguessable key.
func newKey() string {
	var b [wire.EndKeySize / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// newMark returns the word by which the processes of a script or command are found on a machine without a stepmux.
func newMark() string { return newKey()[:16] }

// Read reads stdout. It returns io.EOF once all output before the reported end has been read.
func (p *process) Read(b []byte) (int, error) {
	for {
		if len(p.rest) > 0 {
			n := copy(b, p.rest)
			p.rest = p.rest[n:]
			return n, nil
		}
		if _, ended := p.stdout.End(); ended {
			return 0, io.EOF
		}
		n, err := p.remote.Read(b)
		if p.native {
			return n, err
		}
		pass := p.stdout.Scan(b[:n])
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			pass = append(pass[:len(pass):len(pass)], p.stdout.Rest()...)
		}
		n = copy(b, pass)
		p.rest = append(p.rest[:0], pass[n:]...)
		if n > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Write writes to stdin.
func (p *process) Write(b []byte) (int, error) {
	if !p.framed {
		return p.remote.Write(b)
	}
	total := 0
	for piece := range slices.Chunk(b, frameSize) {
		frame := fmt.Appendf(make([]byte, 0, len(piece)+8), "%d\n", len(piece))
		if _, err := p.remote.Write(append(frame, piece...)); err != nil {
			return total, err
		}
		total += len(piece)
	}
	return total, nil
}

// closeWrite ends the stdin of a native or framed process. Other processes take it as the order to end.
func (p *process) closeWrite() error {
	if p.framed {
		_, err := io.WriteString(p.remote, "0\n")
		return err
	}
	return p.remote.CloseWrite()
}

// awaitEnd waits until the end is known or can no longer become known, or until ctx ends. More output may follow.
func (p *process) awaitEnd(ctx context.Context) error {
	select {
	case <-p.stderr.told:
	case <-p.remote.Exited():
	case <-p.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// exit returns the exit code, once awaitEnd has returned nil.
func (p *process) exit() (code int, err error) {
	if end, told := p.stderr.end(); told {
		if end.Stage == "" {
			return end.Code, nil
		}
		return 0, machineError(end.Stage, end.Text, nil)
	}
	select {
	case <-p.remote.Exited():
	default:
		return 0, errors.New("the script was stopped, but its end was not observed")
	}
	err = p.remote.Err()
	code = mux.ExitCode(err)
	switch {
	case p.native && code >= 0:
		return code, nil
	case code >= 0:
		if err == nil {
			err = errors.New("the wrapper ended without reporting the script's exit code")
		}
		p.stderr.flush()
		return 0, machineError(stageGuard, p.stderr.tail.String(), err)
	default:
		return 0, err
	}
}

// run passes stdout on and waits for the end. If ctx ends or an output fails, it stops the process. The error is
// ctx's, the output's, or that of exit.
func (p *process) run(ctx context.Context, out *outputs) (code int, err error) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer p.close()
	defer out.release()
	complete := make(chan struct{})
	var cut error       // why stdout is incomplete; valid once complete is closed
	reading.Go(func() { //nolint:contextcheck // a stopped process is read to its end
		defer close(complete)
		cut = drain(p, out.writer(out.stdout))
		_ = p.awaitEnd(context.Background()) // soon: stdout has ended, or was closed by this side
	})
	select {
	case <-complete:
	case <-out.failed.Done():
		p.stop(complete)
		return 0, out.failure()
	case <-ctx.Done():
		p.stop(complete)
		return 0, ctx.Err()
	}
	p.stderr.flush()
	if err := out.flush(ctx); err != nil {
		return 0, err
	}
	if out.failed.Err() != nil {
		return 0, out.failure()
	}
	code, err = p.exit()
	if err == nil && mux.IsLost(cut) {
		return 0, cut // stderr reported the end before the connection was lost, but stdout is incomplete
	}
	return code, err
}

// stop ends the process: SIGTERM to its process group, the grace, SIGKILL. It returns, with the channel closed, when
// the process is gone and read, if not nil, is closed, or when that takes too long; the VM then finishes by itself.
// Output must be read until stop returns.
func (p *process) stop(read <-chan struct{}) {
	var asking sync.WaitGroup
	defer asking.Wait()
	defer p.shut() // unblocks it
	deadline := time.NewTimer(p.grace + stopMargin)
	defer deadline.Stop()
	p.ask(&asking)
	kill := (<-chan time.Time)(nil)
	if p.native {
		timer := time.NewTimer(p.grace)
		defer timer.Stop()
		kill = timer.C
	}
	for exited := p.remote.Exited(); exited != nil || read != nil; {
		select {
		case <-exited:
			exited = nil
		case <-read:
			read = nil
		case <-kill:
			asking.Go(func() { _ = p.remote.Signal("KILL") }) // fails only if it has ended
		case <-deadline.C:
			return
		}
	}
}

// ask asks the process to end.
func (p *process) ask(asking *sync.WaitGroup) {
	asked := make(chan struct{})
	asking.Go(func() {
		defer close(asked)
		if p.native {
			_ = p.remote.Signal("TERM") // fails only if it has ended
		}
		_ = p.remote.CloseWrite() // as above
	})
	stuck := time.NewTimer(stuckInput)
	defer stuck.Stop()
	select {
	case <-asked:
	case <-p.remote.Exited():
	case <-stuck.C:
		// The end of stdin queues behind unread input. Closing the channel stops the process too.
		_ = p.remote.Close() // always nil
	}
}

// close closes the channel of a process that has ended or been stopped.
func (p *process) close() {
	timer := time.NewTimer(closeDelay)
	defer timer.Stop()
	select {
	case <-p.remote.Exited():
	case <-p.closed:
	case <-timer.C:
	}
	p.shut()
}

// stderrScanner receives the stderr of a process. It finds the report of the end, passes the rest on, and keeps the
// last lines for an error message.
type stderrScanner struct {
	to io.Writer

	mu      sync.Mutex // guards the following
	scanner *wire.EndScanner

	tail tail.Writer
	told chan struct{} // closed once the end has been reported
}

// Write never fails: the report of the end is needed even after an output has failed.
func (s *stderrScanner) Write(b []byte) (int, error) {
	s.mu.Lock()
	_, before := s.scanner.End()
	pass := s.scanner.Scan(b)
	_, after := s.scanner.End()
	s.mu.Unlock()
	s.pass(pass)
	if after && !before {
		close(s.told)
	}
	return len(b), nil
}

// end returns the end, if it has been reported.
func (s *stderrScanner) end() (wire.End, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scanner.End()
}

// flush passes on the text that the scanner held back, once the process has exited.
func (s *stderrScanner) flush() {
	s.mu.Lock()
	rest := s.scanner.Rest()
	s.mu.Unlock()
	s.pass(rest)
}

func (s *stderrScanner) pass(text []byte) {
	if len(text) > 0 {
		_, _ = s.tail.Write(text) // never fails
		_, _ = s.to.Write(text)
	}
}
