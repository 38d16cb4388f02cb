package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// tryFlock takes the exclusive lock of the directory dir and reports whether it got it. The lock lives
// as long as this open directory, so it ends with the process however that ends. systemd-tmpfiles
// respects it too.
func tryFlock(dir *os.File) (bool, error) {
	err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	}
	return false, fmt.Errorf("lock directory %s (it must be on a file system with flock): %w", dir.Name(), err)
}

// unlock gives the lock back at once. Closing dir alone would not while a child that is being forked
// still has a copy of the descriptor.
func unlock(dir *os.File) { _ = unix.Flock(int(dir.Fd()), unix.LOCK_UN) }

// poll calls try until it reports done, fails, or ctx ends, with a pause that grows from 1 to 20 ms.
// flock has no wait that a context could end.
func poll(ctx context.Context, try func() (done bool, err error)) error {
	pause := time.Millisecond
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}
