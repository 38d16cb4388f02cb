package proc

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Spare excepts a process that descends from a child from KillAll, and with it its own descendants while it lives: it
// goes on when this program has ended.
func (r *reaper) Spare(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(unix.Kill(pid, 0), unix.ESRCH) { // else it was reaped already
		r.before[pid], r.spared[pid] = true, true // until it is reaped
	}
}

// AwaitSpared waits until no process of Spare is left, or until ctx ends. It is called after KillAll.
func (r *reaper) AwaitSpared(ctx context.Context) {
	for r.hasSpared() {
		select {
		case <-r.reaped:
		case <-ctx.Done():
			return
		}
	}
}

func (r *reaper) hasSpared() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(ListChildren(), func(pid int) bool { return r.spared[pid] })
}
