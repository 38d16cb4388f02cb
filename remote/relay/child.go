package relay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
)

const (
	// drainTimeout is how long the output of a process is still read after its exit, if its children hold it open.
	drainTimeout = 2 * time.Second
	// pipeSize is the capacity of a pipe (pipe(7)).
	pipeSize = 64 << 10
)

// process is a process and the stream that asked for it. Its goroutines are: the stream's own, which ends it; one that
// takes the manager's frames; one for each of stdout and stderr; and one that feeds stdin, from its first byte on.
type process struct {
	*stream
	*spawned
	ready    *readySocket // the socket on which it will listen, or nil
	outlives bool         // it is or starts a serve that outlives this relay

	detached chan struct{} // closed once it is a serve that outlives this relay, and must not be ended with its stream

	input  input
	feeder sync.WaitGroup
	fed    sync.Once // starts feeder

	room struct{ stdout, stderr *window } // the manager's windows

	gone        chan struct{} // closed once the manager's frames have ended and protocolErr is set
	protocolErr error         // how the manager broke the protocol; nil if it closed the stream
	over        chan struct{} // closed once the process and its output have ended

	abortWrites func()      // ends writes that wait for a manager that has stopped reading
	abortTimer  *time.Timer // calls abortWrites; read once gone is closed; nil if it is not needed
}

// start serves a start request: it starts a process and carries its bytes until both have ended.
func (s *stream) start(request *wire.RelayStart) {
	if !s.relay.beginProcess() {
		s.answer(errClosing)
		return
	}
	defer s.relay.processes.Done()
	p := &process{stream: s, detached: make(chan struct{}), gone: make(chan struct{}), over: make(chan struct{})}
	giveUp := make(chan struct{})
	s.giveUp, p.abortWrites = giveUp, sync.OnceFunc(func() { close(giveUp) })
	p.input.more, p.room.stdout, p.room.stderr = make(chan struct{}, 1), newWindow(), newWindow()
	if request.Ready != "" {
		p.ready, p.outlives = s.relay.sockets.own(request.Ready), lingers(request)
	}
	var err error
	if p.spawned, err = s.relay.exec(request); err != nil {
		s.relay.sockets.disown(p.ready, err.Error())
		s.answer(err)
		return
	}
	s.answer(nil)
	p.run()
}

// exec starts the process of a request, or takes a prestarted one. The error is the relay's refusal.
func (r *relay) exec(request *wire.RelayStart) (*spawned, error) {
	c, err := NewCommand(request)
	if err != nil {
		return nil, err
	}
	c.linger(request)
	serve := serveCommand(c, request)
	if serve == nil {
		if request.Line != "" {
			c.env = append(c.env, r.tools.env(r)...)
		}
		return r.spawn(c)
	}
	if spare := r.spares.take(serve, request.Ready); spare != nil {
		return spare, nil
	}
	started, err := r.spawn(serve)
	if err == nil {
		_, _ = started.stdin.Write([]byte(request.Ready + "\n")) // if it has died, its end says so
	}
	return started, err
}

// spawn starts a process with pipes as its stdio. The error is the relay's refusal.
func (r *relay) spawn(c *Command) (*spawned, error) {
	ours, theirs, err := stdioPipes()
	if err != nil {
		return nil, c.refusal(err)
	}
	files := theirs[:]
	var toServe *control
	if c.reuse {
		near, far, err := pipe.ControlPair()
		if err != nil {
			closeAll(append(files, ours[:]...))
			return nil, c.refusal(err)
		}
		files, toServe = append(files, far), &control{near}
	}
	started, err := c.Start(r.children, files...)
	closeAll(files)
	if err != nil {
		closeAll(ours[:])
		toServe.close()
		return nil, err
	}
	return &spawned{
		child: started, argv: c.argv, stdin: pipeFile(ours[0]), stdout: pipeFile(ours[1]), stderr: pipeFile(ours[2]),
		control: toServe, lingers: c.lingers,
	}, nil
}

// stdioPipes makes the pipes for a process's stdin, stdout and stderr.
func stdioPipes() (ours, theirs [3]int, err error) {
	for i := range ours {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			closeAll(append(ours[:i:i], theirs[:i]...))
			return ours, theirs, err
		}
		ours[i], theirs[i] = ends[0], ends[1]
		if i == 0 {
			ours[i], theirs[i] = ends[1], ends[0]
		}
	}
	return ours, theirs, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// pipeFile returns fd as a file. A goroutine that waits for it does not block a thread.
func pipeFile(fd int) *os.File {
	_ = unix.SetNonblock(fd, true) // never fails for a pipe
	return os.NewFile(uintptr(fd), "pipe")
}

// run carries the process's bytes until it has ended, and kills the rest of its group. If the process outlives this
// relay, run only waits until its stream or the relay ends. A serve that has ended its build and offers itself for
// another one counts as ended, with the status 0.
func (p *process) run() {
	var frames sync.WaitGroup
	frames.Go(p.takeFrames)
	output := make(chan struct{})
	go func() { // waited for below
		defer close(output)
		p.carryOutput()
	}()
	waits := p.awaitEnd(output)
	if !waits {
		p.drain(output)
	}
	close(p.over)
	p.relay.sockets.disown(p.ready, "the serve has ended")
	p.input.close()
	p.stdin.Close()
	p.wake()
	frames.Wait()
	p.feeder.Wait()
	p.stdout.Close()
	p.stderr.Close()
	exited := !waits && pause.Done(p.child.Exited())
	var status syscall.WaitStatus
	if exited {
		status = p.child.Status()
	}
	if waits { // it is kept before the manager learns of the end, and starts the next build
		p.relay.children.Unspare(p.child.PID())
		p.relay.spares.keep(&spawned{child: p.child, argv: p.argv, control: p.control, lingers: p.lingers})
	} else {
		p.control.close()
	}
	if p.protocolErr == nil && (waits || exited) {
		_ = p.write(exitOf(status).Append(nil)) // the manager may have gone
	}
	if p.abortTimer != nil {
		p.abortTimer.Stop()
	}
	if exited && status.Signaled() && !pause.Done(p.relay.closing) {
		p.relay.sweep() // if it was a serve, its jobs are still running
	}
}

// awaitEnd waits until the process has ended, and ends it if its stream or the relay ends first. waits says that it is
// a serve that has ended its build and waits for another one. output is closed once its output has ended.
func (p *process) awaitEnd(output <-chan struct{}) (waits bool) {
	for {
		select {
		case <-p.child.Exited():
		case <-output:
			if p.control != nil && pipe.TakeWaiting(p.control.fd) {
				return true
			}
			output = nil
			continue
		case <-p.gone:
			p.end()
		case <-p.relay.closing:
			p.end()
		}
		return false
	}
}

// end ends the process: it closes its stdin, sends SIGTERM to its group and, after the grace, SIGKILL. Some processes
// cannot be killed: end waits for them until the relay abandons them.
func (p *process) end() {
	if pause.Done(p.detached) {
		return
	}
	r := p.relay
	r.sockets.disown(p.ready, "the serve is being ended")
	p.input.close()
	p.stdin.Close()
	if r.children.Stop(p.child, r.grace) {
		return
	}
	r.children.Signal(p.child, unix.SIGKILL)
	select {
	case <-p.child.Exited():
	case <-r.abandoned:
	}
}

// drain waits until the output has ended, for at most drainTimeout if children of the process hold it open, and kills
// the rest of the process group. For a process that outlives this relay it does neither.
func (p *process) drain(output <-chan struct{}) {
	if !pause.Done(p.detached) || pause.Done(p.child.Exited()) {
		timer := time.NewTimer(drainTimeout)
		defer timer.Stop()
		select {
		case <-output:
		case <-timer.C:
		}
		p.relay.children.Signal(p.child, unix.SIGKILL)
	}
	// The bytes that are in the pipes already are still sent.
	_ = p.stdout.SetReadDeadline(time.Unix(1, 0)) // never fails for a pipe
	_ = p.stderr.SetReadDeadline(time.Unix(1, 0))
	<-output
}

// takeFrames takes the manager's frames until they end or the process has ended.
func (p *process) takeFrames() {
	defer func() {
		if !pause.Done(p.over) { // the manager may have stopped reading
			p.abortTimer = time.AfterFunc(p.relay.grace+drainTimeout, p.abortWrites)
		}
		close(p.gone)
	}()
	for !pause.Done(p.over) {
		kind, n, err := p.next()
		if err == nil {
			err = p.take(kind, n)
		}
		if errors.Is(err, wire.ErrRelayProtocol) {
			p.protocolErr = err
			p.relay.log.Printf("ended process %d: %v", p.child.PID(), err)
			p.raw.Close()
		}
		if err != nil {
			return
		}
	}
}

// take takes one frame. Its payload of n bytes is still to be read.
func (p *process) take(kind wire.RelayFrame, n int) error {
	if kind == wire.FrameData {
		f := getFrame()
		defer frames.Put(f)
		if _, err := io.ReadFull(p.in, f[:n]); err != nil {
			return err
		}
		return p.giveInput(f[:n])
	}
	if n > idleBuffer {
		return fmt.Errorf("%w: a frame %q of %d bytes to a process", wire.ErrRelayProtocol, kind, n)
	}
	payload, err := wire.ReadFramePayload(p.in, n)
	if err != nil {
		return err
	}
	switch {
	case kind == wire.FrameCredit:
		credit, err := wire.ParseRelayCredit(payload)
		if err != nil {
			return err
		}
		if credit.Kind == wire.FrameStderr {
			return p.room.stderr.grow(int(credit.N))
		}
		return p.room.stdout.grow(int(credit.N))
	case kind == wire.FrameSignal:
		p.signal(string(payload))
		return nil
	case kind == wire.FrameEnd && n == 0:
		return p.giveInput(nil)
	default:
		return fmt.Errorf("%w: a frame %q of %d bytes to a process", wire.ErrRelayProtocol, kind, n)
	}
}

// signals are those of RFC 4254, section 6.10.
var signals = map[string]syscall.Signal{
	"ABRT": unix.SIGABRT, "ALRM": unix.SIGALRM, "FPE": unix.SIGFPE, "HUP": unix.SIGHUP, "ILL": unix.SIGILL,
	"INT": unix.SIGINT, "KILL": unix.SIGKILL, "PIPE": unix.SIGPIPE, "QUIT": unix.SIGQUIT, "SEGV": unix.SIGSEGV,
	"TERM": unix.SIGTERM, "USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2,
}

// signal sends a signal to the process group. Like SSH, it ignores an unknown signal.
func (p *process) signal(name string) {
	if sig, ok := signals[name]; ok {
		p.relay.children.Signal(p.child, sig)
		return
	}
	p.relay.log.Printf("ignored a signal %.32q for process %d: no signal has that name", name, p.child.PID())
}

// exitOf returns the end of a process in the form of the relay's protocol.
func exitOf(status syscall.WaitStatus) wire.RelayExit {
	if !status.Signaled() {
		return wire.RelayExit{Status: uint8(status.ExitStatus())}
	}
	exit := wire.RelayExit{Signal: strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")}
	if exit.Signal == "" { // a real-time signal
		exit.Signal = strconv.Itoa(int(status.Signal()))
	}
	if status.CoreDump() {
		exit.Text = "core dumped"
	}
	return exit
}
