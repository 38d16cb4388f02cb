package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// link is the server's end of an init. It has a goroutine, which ends with the init, and one that waits for the init's
// end. If the kernel cannot end the init, the latter stays behind.
type link struct {
	init    *os.Process
	control *os.File
	crash   *os.File // the init's standard error, a file in memory, up to the end of listen; nil if there is none
	level   vmconfig.Level
	off     error // why level is Off although Auto was asked for
	group   group // of its processes; nil without limits

	view  *os.File      // the root directory of the commands, set before ready gets its report; nil if it is our root
	ready chan report   // gets the answer to the room
	gone  chan struct{} // closed once the init has ended and err is set
	err   error         // why the init could not end cleanly
	said  string        // the text of its crash, with a remedy; empty if it did not crash

	showing sync.Mutex          // held by show; guards the following
	shown   map[string]struct{} // directories that show has made visible

	mu        sync.Mutex // guards the following
	last      uint32     // the number of the last command
	processes map[uint32]*Process
	left      int   // processes that the init could not kill at its end
	used      Usage // as the init has reported

	closing sync.Once
	resume  func() // continues an init that was stopped
}

var (
	// errInit is the error of a command whose init ended first.
	errInit = errors.New("the command's init process ended first")
	// errStartUnknown is the error of a command that was sent to the init, which ended without a report about it.
	errStartUnknown error = startUnknown{}
	// errUnreachable is the error of a command that could not be sent to the init. It has not started.
	errUnreachable = initError{errors.New("the command's init process does not accept commands: it has ended or hangs")}
)

// startUnknown is the type of errStartUnknown.
type startUnknown struct{}

func (startUnknown) Error() string {
	return errInit.Error() + "; it is not known whether the command had started"
}

func (startUnknown) Unwrap() error { return errInit }

// errUnkillable is the error of an init that could not end all of its processes, or did not end. The number of the
// processes stands before it, if it is known.
var errUnkillable = errors.New("processes could not be killed")

// launcher starts an init.
type launcher struct {
	room   isolate.Spec
	orphan string
	keep   *os.File // may be nil
	group  group    // may be nil
	off    error    // why the level is Off although it was Auto
	forked *link    // an init that waits for its messageRoom; nil if there is none
}

// launch starts the init. With level Auto the init is not isolated if the machine offers no isolation. If anything else
// fails, there is no init: another build may have caused that, to take the isolation from this one.
func (s *launcher) launch() (*link, error) {
	defer func() {
		if s.forked != nil { // its namespaces were not enough
			s.forked.abandon()
			<-s.forked.gone
		}
	}()
	s.room = resolve(s.room)
	if s.room.Level == vmconfig.Auto && s.room.Dir == "" {
		s.room.Level = vmconfig.Off
	}
	if s.room.Level != vmconfig.Auto {
		return s.launchAt()
	}
	if s.room.Level, s.off = isolate.Choose(context.Background()); s.off == nil { // has a timeout of its own
		l, err := s.launchAt()
		if err == nil || !hasRefused(err) && !isolate.Closed() {
			return l, err
		}
		s.room.Level, s.off = vmconfig.Off, err
	}
	return s.launchAt()
}

// launchAt starts the init with the room's level, which is not Auto.
func (s *launcher) launchAt() (l *link, err error) {
	level := s.room.Level
	if s.forked != nil && s.forked.level == level {
		l, s.forked = s.forked, nil
	} else {
		if l, err = fork(level, nil, s.keep, s.group); err == nil && level != vmconfig.Off {
			err = isolate.MapUser(l.init.Pid)
		}
	}
	if l == nil {
		return nil, unavailable(level, err)
	}
	if err == nil {
		err = sendFiles(l.control, message{kind: messageRoom}, encodeRoom(s.room, s.orphan))
	}
	if err == nil {
		err = l.await()
	}
	if err == nil && level != vmconfig.Off && l.view == nil {
		err = errors.New("the init does not show its root directory")
	}
	if err != nil {
		l.abandon()
		<-l.gone
		if l.said != "" {
			return nil, errors.New("the init process could not start: " + l.said) // isolation has no part in it
		}
		return nil, unavailable(level, err)
	}
	l.off = s.off
	return l, nil
}

// fork starts the process of an init, which then waits for its messageRoom. If as is not nil, it runs as that user.
// keep and group may be nil.
func fork(level vmconfig.Level, as *syscall.Credential, keep *os.File, group group) (*link, error) {
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
		control: control, level: level, group: group, ready: make(chan report, 1), gone: make(chan struct{}),
		processes: map[uint32]*Process{}, shown: map[string]struct{}{},
	}
	l.resume = func() { _ = l.init.Signal(unix.SIGCONT) } // an error means that it has ended
	// An init that was stopped is continued when its server dies. It notices the death by its channel.
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGCONT, Credential: as}
	isolate.Attributes(level, sys)
	if group != nil {
		group.Attributes(sys)
	}
	attr := &os.ProcAttr{
		Dir:   "/",
		Files: []*os.File{null, null, null, theirs}, Sys: sys,
	}
	if fd, err := unix.MemfdCreate("crash", unix.MFD_CLOEXEC); err == nil {
		l.crash = os.NewFile(uintptr(fd), "crash")
		attr.Files[2] = l.crash
	}
	if keep != nil {
		attr.Files = append(attr.Files, keep)
	}
	err = startInit(l, attr)
	theirs.Close() // otherwise the channel would not end with the init
	if group != nil && errors.Is(err, unix.EACCES) {
		err = errors.New("only root can start processes in the cgroup of this build's limits, and it has become the build " +
			"user (ask for isolation off or processes by name)")
	}
	if err != nil {
		control.Close()
		l.crash.Close() // an error if there is none
		return nil, fmt.Errorf("start its init: %w%s", oserr.Bare(err), tail.Remedy(err.Error()))
	}
	go l.listen()
	return l, nil
}

// await waits for the init's answer to messageRoom.
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
		return errors.New("the init process ended at its start")
	case <-timer.C:
		return fmt.Errorf("the init process is not ready after %v", initTimeout)
	}
}

// start sends c to the init and waits until it runs. If the init ends first, c may have run. Then start returns no
// error but a process whose exit is unknown: after an error the caller may start the command again.
func (l *link) start(ctx context.Context, c Command) (*Process, error) {
	if c.Visible != "" && l.level != vmconfig.Off {
		c.Visible = isolate.Follow(c.Visible)
	}
	p, err := l.register(c.Argv[0])
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], err)
	}
	if err := p.connect(&c); err != nil {
		l.unregister(p)
		_ = p.Close() // the caller needs err
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
	return nil, p.limited(p.failed.error(&c))
}

// show makes the directory visible, as the Visible of a command does. It asks the init once for each directory.
func (l *link) show(dir string) error {
	l.showing.Lock()
	defer l.showing.Unlock()
	if _, ok := l.shown[dir]; ok {
		return nil
	}
	real := isolate.Follow(dir)
	if real == "" {
		return nil // no command sees it either
	}
	p, err := l.register("show")
	if err != nil {
		return err
	}
	if err := sendFiles(l.control, message{messageShow, p.id}, []byte(real)); err != nil {
		l.unregister(p)
		return err
	}
	timer := time.NewTimer(initTimeout)
	defer timer.Stop()
	select {
	case <-p.started:
	case <-timer.C:
		l.abandon()
		<-p.started
	}
	switch {
	case p.failed != nil:
		return p.failed
	case p.exitErr != nil:
		return errInit
	}
	l.shown[dir] = struct{}{}
	return nil
}

// register returns a process with a new number.
func (l *link) register(program string) (*Process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pause.Done(l.gone) {
		return nil, errUnreachable
	}
	l.last++
	p := newProcess(l, l.last, program)
	if l.group != nil {
		p.before = l.group.Events()
	}
	l.processes[p.id] = p
	return p, nil
}

// unregister removes a process that was never sent to the init: there will be no report about it.
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
	if err := l.receiveReports(); !errors.Is(err, io.EOF) {
		l.abandon() // it broke the protocol
	}
	ended := make(chan error, 1)
	go func() { ended <- l.reap() }()
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	err, strays := errUnkillable, 0
	select {
	case err = <-ended:
		if err != nil {
			strays = killStrays(killTimeout) // its processes, unless the kernel has ended them with its namespace
		}
	case <-timer.C: // the first process of a namespace ends after all others, and the kernel may be unable to end one
	}
	l.said = l.crashText()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err != nil && l.said != "" {
		l.err = fmt.Errorf("%w: %s", err, l.said)
	}
	if l.left += strays; l.left > 0 {
		l.err = fmt.Errorf("%d %w", l.left, errUnkillable)
	}
	for id, p := range l.processes {
		p.lost(l.err)
		delete(l.processes, id)
	}
	l.control.Close()
	if l.view != nil {
		l.view.Close()
	}
}

// reap waits until the init has ended, and returns an error unless it has ended cleanly.
func (l *link) reap() error {
	state, err := l.init.Wait()
	forgetInit(l)
	switch {
	case err != nil:
		return fmt.Errorf("wait for its init: %w", oserr.Bare(err))
	case !state.Success():
		return fmt.Errorf("%w: %v", errInit, state)
	default:
		return nil
	}
}

// crashText returns the text of the init's crash, and closes the file with it. An init writes nothing else there.
func (l *link) crashText() string {
	defer l.crash.Close() // an error if there is none
	text := make([]byte, tail.MaxBytes)
	n, _ := l.crash.ReadAt(text, 0) // an error at the end
	return tail.Lines(text[:n])
}

// receiveReports handles the init's reports until the channel ends. The error at its end is io.EOF.
func (l *link) receiveReports() error {
	for packet := make([]byte, maxReport); ; {
		n, file, err := l.receiveReport(packet)
		if err != nil {
			return err
		}
		r, err := parseReport(packet[:n])
		switch {
		case err != nil:
		case file == nil:
		case r.Kind == reportReady && l.view == nil:
			l.view, file = file, nil
		default:
			err = errMessage
		}
		if file != nil {
			file.Close()
		}
		if err != nil {
			return err
		}
		if r.ID == 0 {
			err = l.take(r)
		} else {
			err = l.dispatch(r)
		}
		if err != nil {
			return err
		}
	}
}

// unavailable adds the remedy to an error of making an init at that level.
func unavailable(level vmconfig.Level, err error) error {
	if level == vmconfig.Off {
		return err
	}
	err = fmt.Errorf("isolation %s is not available: %w", level, err)
	if remedy := isolate.Remedy(err); remedy != "" {
		err = fmt.Errorf("%w (%s)", err, remedy)
	}
	return err
}

// hasRefused reports whether err says that the machine does not allow isolation. Otherwise the machine has run out of
// namespaces, processes, memory, files, disk space or time, or files of this build or of its user were in the way.
func hasRefused(err error) bool {
	if f, ok := errors.AsType[*failure](err); ok && f.at != stageRoom {
		return false
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && (!oserr.Exhausted(errno) || errno == unix.EROFS || errno == unix.EIO)
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
		l.used = r.usage()
		l.mu.Unlock()
		return nil
	}
	return errMessage
}

// dispatch passes a report to its process.
func (l *link) dispatch(r report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[r.ID]
	switch {
	case p == nil && r.Kind == reportGroup:
		return nil // the command has ended between the question and its answer
	case p == nil:
		return errMessage
	}
	over, err := p.take(r)
	if over {
		if r.Kind == reportClosed {
			l.used = r.usage()
		}
		delete(l.processes, r.ID)
	}
	return err
}

// tell sends the init a message, and continues an init that was stopped. It ignores errors: the init may be gone. It
// does not block.
func (l *link) tell(m message) {
	_ = sendFiles(l.control, m, nil)
	l.resume()
}

// abandon kills the init, which ends all its commands. A process that it was starting may hold the channel open.
func (l *link) abandon() {
	_ = l.init.Kill()                                          // fails only if the init has ended
	_ = l.control.SetReadDeadline(time.Now().Add(killTimeout)) // fails only if listen has ended
}

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
