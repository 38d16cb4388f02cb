package proc

import (
	"errors"

	"golang.org/x/sys/unix"
)

// family is the command of a shim and every process that descends from it. All of them are children of the shim, or
// descend from one.
type family struct {
	*reaper
	leader *Child // the command
}

// reap reaps children until no child is left.
func (f *family) reap() {
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
