package proc

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// family is the command of a shim and every process that descends from it. All of them are children of the shim, or
// descend from one.
type family struct {
	*reaper
	leader *Child        // the command
	none   chan struct{} // closed once there is no child left
	kills  sync.Once
}

// newFamily starts the family's command.
func newFamily(command func() (pid int, err error)) (*family, error) {
	f := &family{reaper: newReaper(), none: make(chan struct{})}
	var err error
	f.leader, err = f.start(command)
	return f, err
}

// reap reaps children until no child is left. It calls exited after it has reaped the command.
func (f *family) reap(exited func(syscall.WaitStatus, *syscall.Rusage)) {
	defer close(f.none)
	for told := false; ; {
		// This wait reaps nothing, as the lock cannot be held while it lasts.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		f.collect()
		if !told {
			select {
			case <-f.leader.exited:
				told = true
				exited(f.leader.status, &f.leader.usage)
			default:
			}
		}
		if err != nil { // ECHILD
			return
		}
	}
}

// term sends SIGTERM to the command's process group.
func (f *family) term() { f.Signal(f.leader, unix.SIGTERM) }

// kill begins to kill the family, and returns at once.
func (f *family) kill() {
	f.kills.Do(func() { go f.killAll(nil) }) // ends with the last child; the process may end first
}

// end kills the family. It returns 0 once every process is gone, or after the timeout the number of children that are
// left: some cannot be killed.
func (f *family) end(timeout time.Duration) (left int) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	if left = f.killAll(timer.C); left == 0 {
		<-f.none
	}
	return left
}
