package remote

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkExec is the type of syscall.ForkExec.
type forkExec func(program string, argv []string, attr *syscall.ProcAttr) (pid int, err error)

// children are the processes a relay has started, and all that descends from them: as this process is a
// child subreaper, what they leave behind becomes its child. A goroutine reaps until release.
type children struct {
	fork   forkExec
	before map[int]bool // children there were before: not ours to kill

	wasSubreaper int
	sigchld      chan os.Signal
	unignored    chan os.Signal // nobody listens to it
	released     chan struct{}
	done         chan struct{} // closed once the goroutine has ended
	reaped       chan struct{} // has room for one; filled when some were reaped

	// While mu is held no child is reaped, so that no pid of a child can become another process's.
	mu        sync.Mutex
	running   map[int]*child
	lingering map[int]*child // reaped, but others of its group live
}

// child is a process that was started, the leader of a session and process group.
type child struct {
	pid    int
	exited chan struct{} // closed once status is set and the process was reaped
	status syscall.WaitStatus
	alone  chan struct{} // closed once it was reaped and nobody is left in its group
}

// ended reports whether p has ended, reaped or not.
func (p *child) ended() bool {
	if isClosed(p.exited) {
		return true
	}
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0 // an error: it was reaped just now
}

// adopt makes this process the parent of all orphans that will descend from it.
func adopt(fork forkExec) (*children, error) {
	c := &children{
		fork:      fork,
		before:    make(map[int]bool),
		sigchld:   make(chan os.Signal, 1),
		unignored: make(chan os.Signal, 1),
		released:  make(chan struct{}),
		done:      make(chan struct{}),
		reaped:    make(chan struct{}, 1),
		running:   make(map[int]*child),
		lingering: make(map[int]*child),
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
	for _, pid := range listChildren() {
		c.before[pid] = true
	}
	// Go leaves these two ignored if it found them so, and an ignored signal is inherited.
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(c.unignored, sig)
		}
	}
	signal.Notify(c.sigchld, unix.SIGCHLD)
	go c.reap()
	return c, nil
}

// release undoes adopt.
func (c *children) release() {
	signal.Stop(c.sigchld)
	signal.Stop(c.unignored)
	close(c.released)
	<-c.done
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(c.wasSubreaper), 0, 0, 0) // as it was
}

// start starts a process.
func (c *children) start(program string, argv []string, attr *syscall.ProcAttr) (*child, error) {
	c.mu.Lock() // one fork at a time is all the system does for one process anyway
	defer c.mu.Unlock()
	pid, err := c.fork(program, argv, attr)
	if err != nil {
		return nil, err
	}
	c.aloneLocked(pid) // nobody can be left in a group whose number is used again
	p := &child{pid: pid, exited: make(chan struct{}), alone: make(chan struct{})}
	c.running[pid] = p
	return p, nil
}

// reap reaps children until release.
func (c *children) reap() {
	defer close(c.done)
	for {
		select {
		case <-c.sigchld:
		case <-c.released:
			return
		}
		c.mu.Lock()
		c.reapLocked()
		c.mu.Unlock()
		select {
		case c.reaped <- struct{}{}:
		default:
		}
	}
}

// reapLocked reaps the children that have ended, and reports whether there are none left.
func (c *children) reapLocked() (none bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil, pid <= 0: // ECHILD, or none that has ended
			for leader := range c.lingering {
				if errors.Is(unix.Kill(-leader, 0), unix.ESRCH) {
					c.aloneLocked(leader)
				}
			}
			return err != nil
		}
		delete(c.before, pid)
		if p := c.running[pid]; p != nil {
			delete(c.running, pid)
			c.lingering[pid] = p
			p.status = status
			close(p.exited)
		}
	}
}

// aloneLocked takes note that nobody is left in the group of leader, if it lingers.
func (c *children) aloneLocked(leader int) {
	if p := c.lingering[leader]; p != nil {
		delete(c.lingering, leader)
		close(p.alone)
	}
}

// signal sends sig to the process group of p, if there is any of it left.
func (c *children) signal(p *child, sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[p.pid] == p || c.lingering[p.pid] == p && c.inGroupLocked(p.pid) {
		_ = unix.Kill(-p.pid, sig)
	}
}

// inGroupLocked reports whether one of our children is in the group: its number is safe from being used
// again as long as that is so.
func (c *children) inGroupLocked(group int) bool {
	return slices.ContainsFunc(listChildren(), func(pid int) bool {
		g, err := unix.Getpgid(pid)
		return err == nil && g == group
	})
}

// killAll kills children until there are none, and returns how many there still are after the timeout.
// Killing one may orphan others, which then are children.
func (c *children) killAll(timeout time.Duration) (left int) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	pause := time.Millisecond
	for {
		left := c.killOnce()
		if left == 0 {
			return 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-c.reaped:
			pause = time.Millisecond
		case <-timer.C:
			pause = min(2*pause, 50*time.Millisecond)
		case <-deadline.C:
			timer.Stop()
			return left
		}
		timer.Stop()
	}
}

// killOnce kills the children there are, and returns how many.
func (c *children) killOnce() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reapLocked() {
		return 0
	}
	for _, pid := range listChildren() {
		if !c.before[pid] {
			_ = unix.Kill(pid, unix.SIGKILL)
			n++
		}
	}
	return n
}

// listChildren returns the pids of the children of this process, the ended ones too.
func listChildren() []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		return scanChildren() // a kernel without CONFIG_PROC_CHILDREN
	}
	var pids []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread that has ended has none
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// scanChildren is listChildren by looking at every process there is.
func scanChildren() []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	parent := strconv.Itoa(os.Getpid())
	var pids []int
	for _, stat := range stats {
		text, _ := os.ReadFile(stat) // it may have just ended
		// pid (any name) state parent ...: see proc_pid_stat(5).
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil && len(fields) > 1 && string(fields[1]) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// closeOnExec keeps everything but stdio from the processes: whatever this one was started with.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return err
}

// prctlGet returns an attribute of this process that prctl(2) stores where its argument points.
func prctlGet(attribute int) (int, error) {
	var value int32
	err := unix.Prctl(attribute, uintptr(unsafe.Pointer(&value)), 0, 0, 0)
	return int(value), err
}
