package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/remote/walls"
)

// link is the server's end of an init. One goroutine belongs to it, which ends with the init.
type link struct {
	init    *os.Process
	control *os.File
	level   walls.Level
	off     error // why level is Off instead of Auto

	ready chan report   // gets the answer to the room
	gone  chan struct{} // closed once the init has ended and err is set
	err   error         // why it could not end cleanly

	mu        sync.Mutex // guards the following
	last      uint32     // the number of the last command
	processes map[uint32]*Process
	left      int // processes that the init could not kill at its end

	closing sync.Once
	resume  func() // continues an init that was stopped
}

var (
	// errInit is the error of a command whose init ended before it.
	errInit = errors.New("the init that held it ended before it")
	// errUntold is that of a command that was handed over, and of which the init told nothing.
	errUntold = fmt.Errorf("%w; it is not known whether it had started", errInit)
	// errDeaf is the error of a command that was not handed over: it has not started.
	errDeaf = initError{errors.New("its init takes no commands: it has ended, or hangs")}
)

// launch starts an init. With level Auto it has no isolation where the machine gives it none.
func launch(room walls.Spec, orphan string) (*link, error) {
	room = resolve(room)
	if room.Level == walls.Auto && room.Dir == "" {
		room.Level = walls.Off
	}
	if room.Level != walls.Auto {
		return launchAt(room, orphan)
	}
	var off error
	if room.Level, off = walls.Choose(context.Background()); off == nil { // bounded by itself
		l, err := launchAt(room, orphan)
		if err == nil || orphanFailed(err) {
			return l, err
		}
		room.Level, off = walls.Off, err
	}
	l, err := launchAt(room, orphan)
	if err == nil {
		l.off = off
	}
	return l, err
}

func launchAt(room walls.Spec, orphan string) (*link, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	control, theirs, err := channelPair()
	if err != nil {
		return nil, err
	}
	l := &link{
		control: control, level: room.Level, ready: make(chan report, 1), gone: make(chan struct{}),
		processes: map[uint32]*Process{},
	}
	l.resume = func() { _ = l.init.Signal(unix.SIGCONT) } // an error means that it has ended
	// An init that was stopped goes on when its server dies. It finds that out by its channel.
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGCONT}
	room.Level.Attributes(sys)
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"}, // it only waits: more threads would wake each other in vain
		Files: []*os.File{null, null, null, theirs}, Sys: sys,
	}
	err = startInit(l, attr)
	theirs.Close() // or the channel would not end with the init
	if err != nil {
		control.Close()
		return nil, unavailable(room.Level, fmt.Errorf("start its init: %w", oserr.Bare(err)))
	}
	go l.listen()
	if room.Level != walls.Off {
		err = walls.MapUser(l.init.Pid)
	}
	if err == nil {
		err = sendFiles(control, message{kind: messageRoom}, encodeRoom(room, orphan))
	}
	if err == nil {
		err = l.await()
	}
	if err != nil {
		_ = l.init.Kill() // fails only if it has ended
		<-l.gone
		return nil, unavailable(room.Level, err)
	}
	return l, nil
}

// await waits for the init's answer to the room.
func (l *link) await() error {
	timer := time.NewTimer(initTimeout)
	defer timer.Stop()
	select {
	case r := <-l.ready:
		if r.Kind == reportReady {
			return nil
		}
		return &failure{r.At, syscall.Errno(r.Errno), r.text}
	case <-l.gone:
		return errors.New("its init ended at its start")
	case <-timer.C:
		return fmt.Errorf("its init is not ready after %v", initTimeout)
	}
}

// start hands c to the init and waits until it runs. If the init ends first, c may have run, with all effects: then
// start returns a process whose exit is unknown, since a caller may start again after an error.
func (l *link) start(ctx context.Context, c Command) (*Process, error) {
	var err error
	if c.Visible != "" && l.level != walls.Off {
		if c.Visible, err = filepath.EvalSymlinks(c.Visible); err != nil {
			return nil, fmt.Errorf("start %q: %w", c.Argv[0], err)
		}
	}
	p, err := l.register(c.Argv[0])
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], err)
	}
	if err := p.connect(&c); err != nil {
		l.unregister(p)
		_ = p.Close() // err is the one that matters
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], err)
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		_ = p.Close()
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], context.Cause(ctx))
	}
	if p.failed == nil {
		return p, nil
	}
	_ = p.Close()
	return nil, p.failed.error(&c)
}

// register returns a process with a number of its own.
func (l *link) register(program string) (*Process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.gone) {
		return nil, errDeaf
	}
	l.last++
	p := newProcess(l, l.last, program)
	l.processes[p.id] = p
	return p, nil
}

// unregister forgets a process of which the init has not heard: it reports nothing of it.
func (l *link) unregister(p *Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.processes[p.id] == p {
		delete(l.processes, p.id)
		close(p.gone)
	}
}

// listen handles the init's reports until it ends.
func (l *link) listen() {
	defer close(l.gone)
	if err := l.hear(); !errors.Is(err, io.EOF) {
		l.abandon() // it broke the protocol
	}
	state, err := l.init.Wait()
	forgetInit(l)
	strays := 0
	if err != nil || !state.Success() {
		strays = killStrays(killTimeout) // what it held, unless the kernel has ended that with its namespace
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.left += strays; {
	case l.left > 0:
		l.err = fmt.Errorf("%d processes could not be killed", l.left)
	case err != nil:
		l.err = fmt.Errorf("wait for its init: %w", oserr.Bare(err))
	case !state.Success():
		l.err = fmt.Errorf("%w: %v", errInit, state)
	}
	for id, p := range l.processes {
		p.lost(l.err)
		delete(l.processes, id)
	}
	l.control.Close()
}

// hear handles reports until the channel ends: then the error is io.EOF.
func (l *link) hear() error {
	for packet := make([]byte, maxReport); ; {
		n, err := l.control.Read(packet)
		if err != nil {
			return err
		}
		r, err := parseReport(packet[:n])
		if err != nil {
			return err
		}
		if r.ID == 0 {
			err = l.take(r)
		} else {
			err = l.give(r)
		}
		if err != nil {
			return err
		}
	}
}

// unavailable adds the remedy to an error of making an init at the level.
func unavailable(level walls.Level, err error) error {
	if level == walls.Off {
		return err
	}
	err = fmt.Errorf("isolation %s cannot be had: %w", level, err)
	if remedy := walls.Remedy(err); remedy != "" {
		err = fmt.Errorf("%w (%s)", err, remedy)
	}
	return err
}

func orphanFailed(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.at == stageOrphan
}

// take handles a report about the init itself.
func (l *link) take(r report) error {
	switch r.Kind {
	case reportReady, reportFailed:
		select {
		case l.ready <- r:
			return nil
		default:
		}
	case reportClosed:
		l.mu.Lock()
		l.left = int(r.Left)
		l.mu.Unlock()
		return nil
	}
	return errMessage
}

// give hands a report to its process.
func (l *link) give(r report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[r.ID]
	if p == nil {
		return errMessage
	}
	over, err := p.take(r)
	if over {
		delete(l.processes, r.ID)
	}
	return err
}

// tell sends the init a message, and continues an init that was stopped. One that is gone needs neither. It does not
// block.
func (l *link) tell(m message) {
	_ = sendFiles(l.control, m, nil)
	l.resume()
}

// abandon kills the init, which ends all its commands.
func (l *link) abandon() { _ = l.init.Kill() } // fails only if it has ended

// close ends the init and waits for its end.
func (l *link) close() error {
	l.closing.Do(func() {
		l.tell(message{kind: messageClose})
		timer := time.NewTimer(initTimeout)
		defer timer.Stop()
		select {
		case <-l.gone:
		case <-timer.C:
			l.abandon()
		}
	})
	<-l.gone
	return l.err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
