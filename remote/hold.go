package remote

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// holdTick is the interval at which Hold looks for other processes.
	holdTick = time.Second
	// holdGrace is how long Hold waits between SIGTERM and its return.
	holdGrace = 10 * time.Second
)

// HoldConfig says how long a container is held.
type HoldConfig struct {
	// Idle is how long Hold goes on without other processes. Required.
	Idle time.Duration
	// First is how long Hold waits for the first other process. If zero, Idle.
	First time.Duration
}

// Hold is the first process of a container. It keeps the container alive for processes that are started from outside,
// such as a relay by an exec, and reaps orphans. It returns nil
//
//   - when no other process has been there for Idle, or the first did not come within First;
//   - when ctx has ended, and the others have ended after a SIGTERM, or 10 s have passed.
//
// When Hold returns and its process exits, the kernel kills the rest of the container. Hold fails in a process that is
// not the first one of a container.
func Hold(ctx context.Context, cfg HoldConfig) error {
	switch {
	case cfg.Idle <= 0:
		return errors.New("hold: Idle is not set")
	case os.Getpid() != 1:
		return errors.New("hold: this is not the first process of a container")
	}
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	defer signal.Stop(orphans)
	tick := time.NewTicker(holdTick)
	defer tick.Stop()
	end, alone, patience := ctx.Done(), time.Now(), cmp.Or(cfg.First, cfg.Idle)
	var late <-chan time.Time
	for {
		reap()
		switch {
		case !isAlone():
			alone, patience = time.Time{}, cfg.Idle
		case alone.IsZero():
			alone = time.Now()
		}
		if !alone.IsZero() && (end == nil || time.Since(alone) >= patience) {
			return nil
		}
		select {
		case <-orphans:
		case <-tick.C:
		case <-late:
			return nil
		case <-end:
			end = nil
			_ = unix.Kill(-1, unix.SIGTERM) // an error says that there is no process
			timer := time.NewTimer(holdGrace)
			defer timer.Stop()
			late = timer.C
		}
	}
}

// isAlone reports whether the first process of a container is the only one in it.
func isAlone() bool { return errors.Is(unix.Kill(-1, 0), unix.ESRCH) }

// reap takes the status of all children that have ended.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.EINTR) || pid == 0 {
			return
		}
	}
}
