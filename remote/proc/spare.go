package proc

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Spare excepts the process pid, a descendant, from KillAll, with its own descendants as long as it lives. So it
// outlives this program.
func (r *reaper) Spare(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(unix.Kill(pid, 0), unix.ESRCH) { // otherwise it was reaped already
		r.before[pid], r.spared[pid] = true, true // until it is reaped
	}
}

// Unspare undoes Spare.
func (r *reaper) Unspare(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spared[pid] {
		delete(r.before, pid)
		delete(r.spared, pid)
	}
}

// AwaitSpared waits until all processes of Spare have ended, or until ctx ends. Call it after KillAll.
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
