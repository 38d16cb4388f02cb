package embeddedvm

import (
	"errors"
	"sync"
	"syscall"
)

// groups is a set of the commands' process groups. The zero value is empty.
type groups struct {
	mu      sync.Mutex // guards the following
	killing bool       // killAll was called
	live    map[*process]struct{}
	left    map[int]struct{} // by ID: the leader has exited, other members have not
}

// add makes sure that killAll ends p.
func (g *groups) add(p *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.killing {
		p.kill(syscall.SIGKILL)
		return
	}
	if g.live == nil {
		g.live = make(map[*process]struct{})
	}
	g.live[p] = struct{}{}
}

// exited is called when p has exited. A group with background processes stays in the set.
func (g *groups) exited(p *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.live, p)
	for id := range g.left {
		if !orphaned(id) {
			delete(g.left, id)
		}
	}
	id := p.cmd.Process.Pid
	switch {
	case !orphaned(id):
	case g.killing:
		killGroup(id)
	default:
		if g.left == nil {
			g.left = make(map[int]struct{})
		}
		g.left[id] = struct{}{}
	}
}

// killAll kills every group, and from now on every group that is added.
func (g *groups) killAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killing = true
	for p := range g.live {
		p.kill(syscall.SIGKILL)
	}
	for id := range g.left {
		if orphaned(id) {
			killGroup(id)
		}
	}
	clear(g.left)
}

func killGroup(id int) {
	_ = syscall.Kill(-id, syscall.SIGKILL) // an error means it has no more members
}

// orphaned reports whether group id exists and its leader does not. The kernel does not give the ID to a new process
// while the group exists, so a process with that ID means that our group is gone.
func orphaned(id int) bool {
	return errors.Is(syscall.Kill(id, 0), syscall.ESRCH) && syscall.Kill(-id, 0) == nil
}
