package proc

import (
	"errors"
	"sync"
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

// reap reaps children until no child is left.
func (f *family) reap() {
	defer close(f.none)
	for {
		// This wait reaps nothing, as the lock cannot be held while it lasts.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			return
		default:
			f.collect()
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
		select {
		case <-f.none:
		case <-timer.C:
		}
	}
	return left
}
