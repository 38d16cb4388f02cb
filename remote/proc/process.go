package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// DrainTimeout is how long Wait reads the output after the command's exit, if processes that it left behind hold
	// it open.
	DrainTimeout = 2 * time.Second

	// shimTimeout is how long the shim has to do as it was told before it is killed itself. It is longer than the
	// shim's own killTimeout.
	shimTimeout = 10 * time.Second
)

// Process is a command that was started, with every process that descends from it. The caller must close it. It is safe
// for concurrent use.
//
// Three goroutines belong to it, and Close waits for them: one that listens to the shim and one for each stream of
// output.
type Process struct {
	shim    *os.Process
	control *os.File
	closing sync.Once
	resume  func() // continues a shim that was stopped

	program string // these two are set once there is a command
	pumps   []*pump

	started chan struct{} // closed once leader or failed is set, or exitErr: the shim has ended
	exited  chan struct{} // closed once exit or exitErr, and exitedAt, are set
	gone    chan struct{} // closed once the shim has ended and shimErr is set

	leader   int      // the command's pid, and that of its process group
	failed   *failure // why the command did not start
	exit     Exit
	exitErr  error // why there is no exit
	exitedAt time.Time
	shimErr  error // why the shim could not end cleanly
	closeErr error // the result of Close, set in closing

	stopping stopper
}

// Start runs c and returns once the program is being executed. ctx bounds the start alone, not the life of the command.
// A few commands are started at a time; more wait for their turn until ctx ends.
//
// A *[StartError] says that the command is at fault: there is no such program, it cannot be executed, or its arguments
// are too large. Other errors name a mistake in c, or a failure of the machine.
func Start(ctx context.Context, c Command) (*Process, error) { return startBy(ctx, &c, launch) }

// startBy is Start with the shim that get returns.
func startBy(ctx context.Context, c *Command, get func() (*Process, error)) (*Process, error) {
	if !isReady.Load() {
		panic("proc: Main was not called at the start of main")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	select {
	case startSlots <- struct{}{}:
		defer func() { <-startSlots }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start %q: wait for a turn: %w", c.Argv[0], context.Cause(ctx))
	}
	p, err := get()
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], err)
	}
	if err := p.begin(ctx, c); err != nil {
		_ = p.Close() // err is the one that matters
		return nil, err
	}
	return p, nil
}

// begin hands the command to the shim and waits until it runs.
func (p *Process) begin(ctx context.Context, c *Command) error {
	p.program = c.Argv[0]
	marked := *c
	marked.Env = slices.Concat(c.Env, Marker())
	c = &marked
	if err := p.connect(c); err != nil {
		return fmt.Errorf("start %q: %w", c.Argv[0], err)
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		return fmt.Errorf("start %q: %w", c.Argv[0], context.Cause(ctx))
	}
	switch {
	case p.failed != nil:
		return p.failed.error(c)
	case p.leader == 0:
		return fmt.Errorf("start %q: %w", c.Argv[0], errShim)
	}
	return nil
}

func newProcess(control *os.File) *Process {
	p := &Process{control: control, started: make(chan struct{}), exited: make(chan struct{}), gone: make(chan struct{})}
	p.resume = func() { _ = p.shim.Signal(unix.SIGCONT) } // an error means that it has ended
	p.stopping = stopper{
		term:    func() { p.tell(messageTerm) },
		kill:    func() { p.tell(messageKill) },
		abandon: p.abandonUnlessExited,
		timeout: shimTimeout,
	}
	return p
}

// PID returns the process id of the command, which is that of its process group and session too.
func (p *Process) PID() int { return p.leader }

// Wait waits for the command's exit, and then until its output was read to the end, or for DrainTimeout if processes
// that it left behind hold the output open. Those live on until Close, and their output is still passed on. If ctx ends
// first Wait returns its cause and does not touch the command. Any number of calls may wait, and all get the same
// result.
//
// An error other than ctx's says that the exit is unknown because the shim was killed or, with a valid Exit, that a
// Writer failed and the output is incomplete.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
	if err := p.drain(ctx); err != nil {
		return Exit{}, err
	}
	if p.exitErr != nil {
		return Exit{}, fmt.Errorf("wait for %q: %w", p.program, p.exitErr)
	}
	var failed []error
	for _, pump := range p.pumps {
		if err := pump.err.Load(); err != nil {
			failed = append(failed, *err)
		}
	}
	return p.exit, errors.Join(failed...)
}

// drain waits until the pumps of a command that has exited have ended, or for the rest of DrainTimeout. The error is
// ctx's cause.
func (p *Process) drain(ctx context.Context) error {
	timer := time.NewTimer(DrainTimeout - time.Since(p.exitedAt))
	defer timer.Stop()
	for _, pump := range p.pumps {
		select {
		case <-pump.done:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Stop asks the command to end: it sends SIGTERM to the command's process group now and, after grace, SIGKILL to every
// process that descends from it, in any group. It does not wait. It may be called at any time, and again: only the
// first call sends SIGTERM, and a call with a shorter grace brings the SIGKILL forward. With a grace of 0 or less it
// sends SIGKILL at once.
func (p *Process) Stop(grace time.Duration) { p.stopping.stop(grace) }

// Close kills every process that descends from the command, in its process group or not. It waits until they are gone,
// the shim has ended, and all output was passed on. After some seconds it gives up processes that cannot be killed,
// because they run as another user or hang in the kernel; that is the error. It is idempotent: every call waits for the
// same end and returns the same error. A blocked Wait returns the exit by SIGKILL.
func (p *Process) Close() error {
	p.closing.Do(func() {
		p.stopping.end()
		p.tell(messageClose)
		timer := time.NewTimer(p.stopping.timeout)
		defer timer.Stop()
		select {
		case <-p.gone:
		case <-timer.C:
			p.abandon()
			<-p.gone
		}
		for _, pump := range p.pumps {
			pump.finish()
		}
		if p.shimErr != nil {
			p.closeErr = fmt.Errorf("close %q: %w", p.program, p.shimErr)
		}
	})
	return p.closeErr
}
