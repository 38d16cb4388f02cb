package proc

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/timerslack"
)

// ForkExec is the type of syscall.ForkExec.
type ForkExec func(program string, argv []string, attr *syscall.ProcAttr) (pid int, err error)

// Children are processes that this program starts without an init, and all their descendants. Adopt makes the program a
// child subreaper: orphans among them become its children. Then it reaps all its children, so no other part of the
// program may start processes. It is safe for concurrent use.
//
// It has one goroutine, which reaps until Release.
type Children struct {
	*reaper
	fork ForkExec

	wasSubreaper int32
	sigchld      chan os.Signal // closed by Release
	unignored    chan os.Signal // never received from
	done         chan struct{}  // closed once the goroutine has ended
}

// Adopt makes this process the parent of all future orphans among its descendants. fork starts its processes; outside
// tests it is [syscall.ForkExec]. The caller must call Release, after KillAll.
func Adopt(fork ForkExec) (*Children, error) {
	c := &Children{
		reaper:    newReaper(),
		fork:      fork,
		sigchld:   make(chan os.Signal, 1),
		unignored: make(chan os.Signal, 1),
		done:      make(chan struct{}),
	}
	if err := closeOnExec(); err != nil {
		return nil, fmt.Errorf("keep open files from processes: %w", err)
	}
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&c.wasSubreaper)), 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("become a child subreaper: %w", err)
	}
	for _, pid := range ListChildren() {
		c.before[pid] = true
	}
	catchIgnored(c.unignored)
	signal.Notify(c.sigchld, unix.SIGCHLD)
	go func() {
		defer close(c.done)
		for range c.sigchld {
			c.collect()
		}
	}()
	return c, nil
}

// Release undoes Adopt. It waits for the goroutine. It does not kill any process.
func (c *Children) Release() {
	signal.Stop(c.sigchld)
	signal.Stop(c.unignored)
	close(c.sigchld)
	<-c.done
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(c.wasSubreaper), 0, 0, 0)
}

// Start starts a process, which attr should make the leader of a session.
func (c *Children) Start(program string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	var child *Child
	err := timerslack.Plain(func() (err error) {
		child, err = c.startAsIs(program, argv, attr)
		return err
	})
	return child, err
}

// startAsIs is Start with the timer slack of this thread.
func (c *Children) startAsIs(program string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	return c.start(func() (int, error) { return c.fork(program, argv, attr) })
}

// StartServer is Start for a program that starts commands by an [Init]. Its threads look for work less often than those
// of other programs, and commands do not inherit that.
func (c *Children) StartServer(program string, argv []string, attr *syscall.ProcAttr) (child *Child, err error) {
	err = timerslack.Calm(func(int) (err error) {
		child, err = c.startAsIs(program, argv, attr)
		return err
	})
	return child, err
}

// catchIgnored makes processes start with no signal ignored, even if this one was started with some. nohup and
// background jobs of shells ignore signals, and Go leaves two of them ignored. They are caught here, because an exec
// resets a caught signal to its default.
func catchIgnored(c chan os.Signal) {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}
