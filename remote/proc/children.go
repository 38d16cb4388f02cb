package proc

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ForkExec is the type of syscall.ForkExec.
type ForkExec func(program string, argv []string, attr *syscall.ProcAttr) (pid int, err error)

// Children are processes that this program starts without an init, and every process that descends from them. While
// they are adopted the program is a child subreaper, so that orphans among them become its children, and it reaps all
// its children: no other part of the program may start processes. It is safe for concurrent use.
//
// One goroutine belongs to it, which reaps until Release.
type Children struct {
	*reaper
	fork ForkExec

	wasSubreaper int
	sigchld      chan os.Signal // closed by Release
	unignored    chan os.Signal // nobody receives from it
	done         chan struct{}  // closed once the goroutine has ended
}

// Adopt makes this process the parent of all orphans that will descend from it. fork starts its processes;
// [syscall.ForkExec] does, outside tests. The caller must call Release, after KillAll.
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
	is, err := prctlGet(unix.PR_GET_CHILD_SUBREAPER)
	if err == nil {
		c.wasSubreaper = is
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

// Release undoes Adopt. It waits for the goroutine, and kills nothing.
func (c *Children) Release() {
	signal.Stop(c.sigchld)
	signal.Stop(c.unignored)
	close(c.sigchld)
	<-c.done
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(c.wasSubreaper), 0, 0, 0)
}

// Start starts a process, which attr should make the leader of a session.
func (c *Children) Start(program string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	return c.start(func() (int, error) { return c.fork(program, argv, attr) })
}

// catchIgnored makes processes start with no signal ignored, whatever this one was started with: it catches the two
// signals that Go leaves ignored, which nohup and background jobs of shells ignore. An exec resets a caught signal to
// its default.
func catchIgnored(c chan os.Signal) {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// prctlGet returns an attribute of this process that prctl(2) stores at its argument.
func prctlGet(attribute int) (int, error) {
	var value int32
	err := unix.Prctl(attribute, uintptr(unsafe.Pointer(&value)), 0, 0, 0)
	return int(value), err
}
