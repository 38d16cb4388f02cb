package proc

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/bigstack"
	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"
)

// Child is a process that was started as the leader of a session and a process group.
type Child struct {
	pid    int
	exited chan struct{} // closed once status and usage are set and the process was reaped
	status syscall.WaitStatus
	usage  syscall.Rusage
	alone  chan struct{} // closed once it was reaped and its process group is empty
	tell   func()        // called once exited is closed, with the reaper's mu held; may be nil
}

// PID returns the process id.
func (c *Child) PID() int { return c.pid }

// Exited is closed once the process has ended and was reaped.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Status returns how the process ended. It is valid once Exited is closed.
func (c *Child) Status() syscall.WaitStatus { return c.status }

// Ended reports whether the process has ended, reaped or not.
func (c *Child) Ended() bool {
	if pause.Done(c.exited) {
		return true
	}
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0 // an error means that it was reaped just now
}

// reaper reaps the children of this process, which is a child subreaper: every descendant is a child, or descends from
// one. If no child is left, no descendant is left. Its owner calls collect whenever a child has ended.
type reaper struct {
	before    map[int]bool  // children from before the reaper: KillAll does not kill them
	spared    map[int]bool  // processes of Spare; they are in before, too
	dying     map[int]bool  // children that killOnce has killed, until they are reaped
	reaped    chan struct{} // has room for one; filled when collect has reaped
	childless func()        // called with mu held when no child is left; may be nil

	// While mu is held no child is reaped. So the pid of a child cannot become that of another process.
	mu        sync.Mutex
	starting  int  // calls of start that are under way
	reaping   bool // the goroutine of reapAll runs
	running   map[int]*Child
	lingering map[int]*Child // reaped, but their groups have members left
	early     map[int]*Child // reaped while a start was under way that may have started them
}

func newReaper() *reaper {
	return &reaper{
		before: map[int]bool{}, spared: map[int]bool{}, dying: map[int]bool{}, reaped: make(chan struct{}, 1),
		running: map[int]*Child{}, lingering: map[int]*Child{}, early: map[int]*Child{},
	}
}

// start starts a process. It holds no lock during the fork, because an exec from a hanging mount does not return. So
// the process may be reaped before its pid is known here.
func (r *reaper) start(fork func() (pid int, err error)) (*Child, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()
	pid, err := fork()
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.early[pid]
	delete(r.early, pid)
	if r.starting--; r.starting == 0 {
		clear(r.early)
	}
	if err != nil {
		return nil, err
	}
	r.aloneLocked(pid) // the pid was free, so the earlier group of that number is empty
	if c != nil && errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD) {
		r.lingering[pid] = c
		return c, nil
	}
	c = newChild(pid) // also if a reaped process had the same pid before
	r.running[pid] = c
	return c, nil
}

// reapAll starts a goroutine that reaps children until the last one has ended, unless it runs already.
func (r *reaper) reapAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reaping {
		return
	}
	r.reaping = true
	go func() {
		bigstack.Grow()
		for {
			// This wait does not reap: the lock must be held to reap, and cannot be held during the wait.
			switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); {
			case errors.Is(err, unix.EINTR):
			case err == nil:
				r.collect()
			case r.rest():
				return
			}
		}
	}()
}

// rest ends the goroutine of reapAll if there is no child, not even one that was started just now.
func (r *reaper) rest() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reaping = !r.collectLocked()
	return !r.reaping
}

func newChild(pid int) *Child {
	return &Child{pid: pid, exited: make(chan struct{}), alone: make(chan struct{})}
}

// collect reaps the children that have ended.
func (r *reaper) collect() {
	r.mu.Lock()
	r.collectLocked()
	r.mu.Unlock()
	select {
	case r.reaped <- struct{}{}:
	default:
	}
}

// collectLocked reaps the children that have ended. none says that this process has no child left.
func (r *reaper) collectLocked() (none bool) {
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &usage)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil, pid <= 0: // ECHILD, or all of them still run
			for leader := range r.lingering {
				if errors.Is(unix.Kill(-leader, 0), unix.ESRCH) {
					r.aloneLocked(leader)
				}
			}
			if err != nil && r.childless != nil {
				r.childless()
			}
			return err != nil
		}
		delete(r.before, pid)
		delete(r.spared, pid)
		delete(r.dying, pid)
		c := r.running[pid]
		switch {
		case c != nil:
			delete(r.running, pid)
			r.lingering[pid] = c
		case r.starting > 0:
			c = newChild(pid)
			r.early[pid] = c
		default:
			continue
		}
		c.status, c.usage = status, usage
		close(c.exited)
		if c.tell != nil {
			c.tell()
		}
	}
}

// aloneLocked records that the process group of leader is empty.
func (r *reaper) aloneLocked(leader int) {
	if c := r.lingering[leader]; c != nil {
		delete(r.lingering, leader)
		close(c.alone)
	}
}

// Signal sends sig to the process group of c, unless the group is empty. SIGCONT follows SIGTERM and SIGHUP, because a
// stopped process does not take them.
func (r *reaper) Signal(c *Child, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[c.pid] != c && (r.lingering[c.pid] != c || !anyInGroup(ListChildren(), c.pid)) {
		return
	}
	_ = unix.Kill(-c.pid, sig)
	if sig == unix.SIGTERM || sig == unix.SIGHUP {
		_ = unix.Kill(-c.pid, unix.SIGCONT)
	}
}

// anyInGroup reports whether one of the children is in the group. As long as one is, the group's number cannot become
// that of another process.
func anyInGroup(children []int, group int) bool {
	return slices.ContainsFunc(children, func(pid int) bool {
		g, err := unix.Getpgid(pid)
		return err == nil && g == group
	})
}

// Stop sends SIGTERM to the process group of c and waits until it is empty, for at most the grace. It reports whether
// it is empty. With a grace of 0 or less it does nothing.
func (r *reaper) Stop(c *Child, grace time.Duration) (alone bool) {
	if grace <= 0 {
		return false
	}
	r.Signal(c, unix.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.alone:
		return true
	case <-timer.C:
		return false
	}
}

// KillAll kills all descendants of this process, except for the children that it had first. It returns how many are
// left after 5 s: some cannot be killed.
func (r *reaper) KillAll() (left int) {
	all := func(pid int) bool { return !r.before[pid] }
	if r.killOnce(all) == 0 { // mostly; a timer takes memory
		return 0
	}
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	return r.killAll(timer.C, all)
}

// killAll kills and reaps the children for which among is true, until all of them are gone or the deadline. It returns
// how many are left. The death of a process may orphan others, which then become children. among is called with mu
// held.
func (r *reaper) killAll(deadline <-chan time.Time, among func(pid int) bool) (left int) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := r.killOnce(among)
		if left == 0 {
			return 0
		}
		select {
		case <-r.reaped:
			pause = time.Millisecond
		case <-time.NewTimer(pause).C:
		case <-deadline:
			return left
		}
	}
}

// killOnce kills those children and the groups they lead, and returns how many there are.
func (r *reaper) killOnce(among func(pid int) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.collectLocked() {
		return 0
	}
	children := ListChildren()
	if len(children) == 0 {
		n = 1 // at least one, although the list cannot be read now
	}
	// Groups come first, each by one signal: a group that forks cannot escape it.
	for pid := range r.running {
		if among(pid) {
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
	}
	for pid := range r.lingering {
		if among(pid) && anyInGroup(children, pid) {
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
	}
	for _, pid := range children {
		// A killed child shows no environment until it is reaped. Its own children become ours after that.
		if r.dying[pid] || among(pid) {
			_ = unix.Kill(pid, unix.SIGKILL)
			r.dying[pid] = true
			n++
		}
	}
	return n
}
