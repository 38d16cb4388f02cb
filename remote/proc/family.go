package proc

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// family is all that descends from the command. As the shim is a child subreaper, every process of it is
// a child of the shim, or of one that is: with no child left there is none of the family left.
type family struct {
	leader int           // pid of the command, and of its process group
	none   chan struct{} // closed once there is no child left
	reaped chan struct{} // has room for one; filled when some were reaped

	// While mu is held no child is reaped, so that no pid of a child can become another process's.
	mu     sync.Mutex
	gone   bool // the leader was reaped
	doomed bool // kill was called
}

func newFamily(leader int) *family {
	return &family{leader: leader, none: make(chan struct{}), reaped: make(chan struct{}, 1)}
}

// reap reaps children until there are none. It calls exited when the leader was among them.
func (f *family) reap(exited func(syscall.WaitStatus, *syscall.Rusage)) {
	defer close(f.none)
	for {
		// Look, but do not touch yet: the lock cannot be held while waiting.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			return
		}
		f.reapReady(exited)
		select {
		case f.reaped <- struct{}{}:
		default:
		}
	}
}

// reapReady reaps the children that have ended.
func (f *family) reapReady(exited func(syscall.WaitStatus, *syscall.Rusage)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &usage)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || pid <= 0:
			return
		}
		if pid == f.leader {
			f.gone = true
			exited(status, &usage)
		}
	}
}

// term sends SIGTERM to the leader's process group.
func (f *family) term() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signalGroupLocked(children(), unix.SIGTERM)
}

// signalGroupLocked signals the leader's process group, if it is still that: its number is safe from
// being used again as long as one child is in it.
func (f *family) signalGroupLocked(children []int, sig syscall.Signal) {
	if !f.gone {
		_ = unix.Kill(-f.leader, sig)
		return
	}
	for _, pid := range children {
		if group, err := unix.Getpgid(pid); err == nil && group == f.leader {
			_ = unix.Kill(-f.leader, sig)
			return
		}
	}
}

// kill begins to kill the family, and returns at once.
func (f *family) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.doomed {
		f.doomed = true
		go f.killAll() // ends with the last child; the process may end first
	}
}

// killAll kills children until there are none. Killing one may orphan others, which then are children.
func (f *family) killAll() {
	pause := time.Millisecond
	for {
		f.mu.Lock()
		list := children()
		f.signalGroupLocked(list, unix.SIGKILL) // at once, so that it cannot outrun us by forking
		for _, pid := range list {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		f.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-f.none:
			timer.Stop()
			return
		case <-f.reaped:
			pause = time.Millisecond
		case <-timer.C:
			pause = min(2*pause, 50*time.Millisecond)
		}
		timer.Stop()
	}
}

// end kills the family, and returns once there is none of it left, or how many children there still are
// after the timeout: some cannot be killed.
func (f *family) end(timeout time.Duration) (left int) {
	select {
	case <-f.none: // as mostly
		return 0
	default:
	}
	f.kill()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-f.none:
		return 0
	case <-timer.C:
		return max(1, len(children()))
	}
}
