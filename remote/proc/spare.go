package proc

// Spare excepts a process that descends from a child from KillAll, and with it its own descendants while it lives: it
// goes on when this program has ended.
func (r *reaper) Spare(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before[pid] = true // until it is reaped
}
