package faults

import (
	"syscall"
	"time"
)

// ends waits for a step runner and returns it with its inits, the relay if there is one, and its build. It stops all of
// these processes.
func (r *rig) ends(f injection) (all []process, build string, ok bool) {
	m, serve, build, ok := r.victim(f, "serve")
	if !ok {
		return nil, "", false
	}
	r.harm(m)
	own := m.owned(processes())
	all = []process{serve}
	for _, p := range own {
		if p.is("relay") || p.is("init") && p.parent == serve.pid {
			all = append(all, p)
		}
	}
	signalAll(all, syscall.SIGSTOP) // so that none acts on the end of another
	return all, build, true
}

// killEnds kills a step runner, its inits and the relay.
func (r *rig) killEnds(f injection) {
	all, _, ok := r.ends(f)
	signalAll(all, syscall.SIGKILL)
	r.counted(ok)
}

// hangEnds stops a step runner, its inits and the relay for good, and cancels the build a while after.
func (r *rig) hangEnds(f injection) {
	all, id, ok := r.ends(f)
	if ok {
		r.heal(func() { signalAll(all, syscall.SIGCONT) })
		r.later(between(time.Second, 4*time.Second, f.Size), func() { r.cancelBuild(id) })
	}
	r.counted(ok)
}
