package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/cgroup"
)

// DrainTimeout is how long Wait reads the output after the command's exit, if processes that it left behind hold it
// open.
const DrainTimeout = 2 * time.Second

// Process is a started command with all its descendants. The caller must close it. It is safe for concurrent use.
//
// It has two goroutines, one for each stream of output, and Close waits for them.
type Process struct {
	link    *link
	id      uint32
	alone   *Init // ends with the process; nil if the Init has other commands
	program string
	pumps   []*pump
	closing sync.Once

	started chan struct{} // closed once leader or failed is set, or exitErr because the init has ended
	exited  chan struct{} // closed once exit or exitErr, and exitedAt, are set
	gone    chan struct{} // closed once no process of the command is left, and goneErr is set
	grouped chan bool     // answers to GroupEnded

	leader   int      // pid and process group of the command, in the init's namespace
	failed   *failure // why the command did not start
	exit     Exit
	exitErr  error // why there is no exit
	exitedAt time.Time
	goneErr  error // which processes could not be killed
	closeErr error // the result of Close, set in closing

	before cgroup.Events // counts of the link's group at the start

	asking   sync.Mutex // held by GroupEnded
	stopping stopper
}

func newProcess(l *link, id uint32, program string) *Process {
	p := &Process{
		link: l, id: id, program: program, grouped: make(chan bool, 1),
		started: make(chan struct{}), exited: make(chan struct{}), gone: make(chan struct{}),
	}
	p.stopping = stopper{
		term:    func() { p.tell(messageTerm) },
		kill:    func() { p.tell(messageKill) },
		abandon: p.abandonUnlessExited,
		timeout: initTimeout,
	}
	return p
}

// connect makes the pipes for the output of c, starts their pumps, and sends the command with the other ends to the
// init.
func (p *Process) connect(c *Command) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return oserr.Hint(err, os.DevNull)
	}
	defer null.Close()
	files := [3]*os.File{null, null, null}
	if c.Stdin != nil {
		files[0] = c.Stdin
	}
	for i, w := range [2]io.Writer{c.Stdout, c.Stderr} {
		if w == nil {
			continue
		}
		if file, ok := w.(*os.File); ok {
			files[1+i] = file
			continue
		}
		if i == 1 && reflect.ValueOf(w).Comparable() && w == c.Stdout {
			files[2] = files[1]
			continue
		}
		pump, end, err := newPump([2]string{"stdout", "stderr"}[i], w)
		if err != nil {
			return err
		}
		defer end.Close()
		go pump.run()
		p.pumps = append(p.pumps, pump)
		files[1+i] = end
	}
	marked := *c
	number := commandVar + "=" + strconv.FormatUint(uint64(p.id), 10)
	marked.Env = slices.Concat(c.Env, Marker(), []string{number})
	return sendFiles(p.link.control, message{messageCommand, p.id}, encodeCommand(&marked), files[:]...)
}

// take handles a report. last says that it was the last one. The link's mu is held.
func (p *Process) take(r report) (last bool, err error) {
	begins := p.leader == 0 && p.failed == nil
	switch {
	case r.Kind == reportStarted && begins && r.PID > 1: // PID > 1: a signal to group 1 would go to every process
		p.leader = int(r.PID)
		close(p.started)
	case r.Kind == reportShown && begins:
		close(p.started)
		close(p.gone)
		return true, nil
	case r.Kind == reportFailed && begins:
		p.failed = &failure{r.At, syscall.Errno(r.Errno), r.text}
		close(p.started)
		close(p.gone)
		return true, nil
	case r.Kind == reportExited && p.leader != 0 && p.exitedAt.IsZero():
		p.exit = r.exit()
		if p.exit.Code != 0 {
			p.exit.Limit = p.limit()
		}
		p.setExited()
	case r.Kind == reportGroup && p.leader != 0:
		select {
		case p.grouped <- r.Left == 0:
		default: // GroupEnded does not wait any more
		}
	case r.Kind == reportClosed && p.leader != 0:
		if p.goneErr == nil && r.Left > 0 {
			p.goneErr = fmt.Errorf("%s could not be killed", plural.Count(r.Left, "process"))
		}
		if p.exitedAt.IsZero() {
			p.exitErr = errors.New("the process could not be killed")
			p.setExited()
		}
		close(p.gone)
		return true, nil
	default:
		return false, errMessage
	}
	return false, nil
}

// lost records that the init has ended. err says why, nil if the server closed it. The link's mu is held.
func (p *Process) lost(err error) {
	p.goneErr = err
	if p.exitedAt.IsZero() {
		// The kernel kills the command with its init, but not the rest of its process group.
		if p.leader != 0 && p.link.level == vmconfig.Off {
			_ = unix.Kill(-p.leader, unix.SIGKILL)
		}
		p.exitErr = errInit // not started and not failed: a failed process is not registered any more
		if p.leader == 0 {  // nor has it failed: the link would have forgotten it
			p.exitErr = errStartUnknown
			close(p.started)
		}
		p.exitErr = p.limited(p.exitErr)
		p.setExited()
	}
	close(p.gone)
}

// limit returns the limit of the build that was reached since the start of the command, or "".
func (p *Process) limit() string {
	if p.link.group == nil {
		return ""
	}
	return p.link.group.Since(p.before)
}

// limited adds that limit to err.
func (p *Process) limited(err error) error {
	if limit := p.limit(); limit != "" {
		return fmt.Errorf("%w: %s", err, limit)
	}
	return err
}

func (p *Process) setExited() {
	p.exitedAt = time.Now()
	close(p.exited)
}

func (p *Process) tell(kind byte) { p.link.tell(message{kind, p.id}) }

// abandonUnlessExited kills the init if it does not report the exit of a command that it was told to kill.
func (p *Process) abandonUnlessExited() {
	if !pause.Done(p.exited) {
		p.link.abandon()
	}
}

// GroupEnded reports whether the command's process group is empty. A command that has exited can leave members of it.
// If ctx ends first, it returns false.
func (p *Process) GroupEnded(ctx context.Context) bool {
	p.asking.Lock()
	defer p.asking.Unlock()
	select {
	case <-p.grouped: // the answer to an earlier question
	default:
	}
	p.tell(messageGroup)
	select {
	case ended := <-p.grouped:
		return ended
	case <-p.gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// AwaitGroup waits until the process group is empty, until killAt, or until ctx ends. killAt is asked again and again,
// because the time may change. It matters for scripts: the shell dies of SIGTERM at once, while its children use the
// grace to clean up.
func (p *Process) AwaitGroup(ctx context.Context, killAt func() time.Time) {
	// The kernel sends no event when a process group ends.
	_ = pause.Until(ctx, func() (bool, error) {
		return !time.Now().Before(killAt()) || p.GroupEnded(ctx), nil
	})
}

// PID returns the process id of the command, which is also that of its process group and session. With isolation it is
// an id in the command's own namespace. It is 0 if the init ended before it reported the id.
func (p *Process) PID() int { return p.leader }

// Wait waits for the command's exit, and then until its output has been read to the end. If processes that it left
// behind hold the output open, it waits for DrainTimeout; they live until Close, and their output is still passed on.
// If ctx ends first, Wait returns its cause and does not touch the command. Any number of calls may wait, and all get
// the same result.
//
// An error other than that of ctx says that the exit is unknown because the init was killed or, with a valid Exit, that
// a Writer failed and the output is incomplete.
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

// drain waits until the pumps of an exited command have ended. For a pump whose pipe is held open it waits at most for
// the rest of DrainTimeout. The error is ctx's cause.
func (p *Process) drain(ctx context.Context) error {
	timer := time.NewTimer(DrainTimeout - time.Since(p.exitedAt))
	defer timer.Stop()
	for _, pump := range p.pumps {
		select {
		case <-pump.done:
			continue
		case <-timer.C:
			timer.Reset(0) // for the next pump
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if pump.isHeld() {
			continue
		}
		select { // all writers have gone, but the output is not written yet: the Writer or the machine is slow
		case <-pump.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Interrupt sends SIGINT to the command's process group, and does not wait. It has no effect on a command that has
// exited.
func (p *Process) Interrupt() { p.tell(messageInt) }

// Stop asks the command to end: it sends SIGTERM to the command's process group now and, after grace, SIGKILL to all
// its descendants in any group. It does not wait. It may be called at any time, and again: only the first call sends
// SIGTERM, and a call with a shorter grace brings the SIGKILL forward. With a grace of 0 or less it sends SIGKILL at
// once.
func (p *Process) Stop(grace time.Duration) { p.stopping.stop(grace) }

// Close kills all descendants of the command, in its process group or not. It waits until they are gone and all output
// was passed on. A process that has left the group and has removed the marker from its environment lives on while other
// commands of the [Init] run, until the last of them is closed.
//
// Some processes cannot be killed, because they run as another user or hang in the kernel. Close gives them up after
// some seconds, and returns an error. It is idempotent: every call waits for the same end and returns the same error. A
// blocked Wait returns the exit by SIGKILL.
func (p *Process) Close() error {
	p.closing.Do(func() {
		p.stopping.end()
		if !pause.Done(p.gone) { // otherwise no process is left
			p.tell(messageClose)
			timer := time.NewTimer(p.stopping.timeout)
			defer timer.Stop()
			select {
			case <-p.gone:
			case <-timer.C:
				p.link.abandon()
				<-p.gone
			}
		}
		for _, pump := range p.pumps {
			pump.finish()
		}
		err := p.goneErr
		if p.alone != nil {
			err = errors.Join(err, p.alone.Close())
		}
		if err != nil {
			p.closeErr = fmt.Errorf("close %q: %w", p.program, err)
		}
	})
	return p.closeErr
}
