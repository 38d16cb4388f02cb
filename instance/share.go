package instance

import (
	"slices"

	"github.com/stepmux/stepmux/pool"
)

// Share makes the group one of several, in different processes, that share the same instances and use each in turn.
// From then on an instance takes builds and is connected to only between Hold and [Provider.Yield]. Call Share before
// the first build. Jump hosts are not held: each group connects to them.
func (g *Group) Share() {
	g.mu.Lock()
	defer g.unlock()
	g.shared = true
	for _, e := range g.entries {
		e.elsewhere = true
	}
}

// Hold declares that no other group uses an instance now. Idempotent. The error wraps ErrUnknown.
func (g *Group) Hold(id string) error {
	g.mu.Lock()
	defer g.unlock()
	e := g.byID[id]
	if e == nil || e.removed {
		return unknown(id)
	}
	e.elsewhere = false
	return nil
}

// Yield undoes Group.Hold, so that another group can hold the instance. It calls told with the IDs of the builds
// there, oldest first, then closes the connection although they run, and returns when it is closed. Builds that
// linger continue there, and another process can resume them. Idempotent.
func (p *Provider) Yield(id string, told func(builds []string)) {
	told(p.cfg.Group.yield(id))
	p.conns.pool.Sever(pool.Key(id), ErrElsewhere)
}

func (g *Group) yield(id string) (builds []string) {
	g.mu.Lock()
	defer g.unlock()
	e := g.byID[id]
	if e == nil {
		return nil
	}
	e.elsewhere = true
	for _, s := range e.slotsInOrder() {
		builds = append(builds, s.build)
	}
	return builds
}

// isElsewhere reports whether another group holds the instance with this ID, and it is not a jump host.
func (g *Group) isElsewhere(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, h := g.byID[id], g.hosts[id]
	return e != nil && e.elsewhere && (h == nil || h.behind == 0)
}

// Takes reports whether an instance with these labels takes builds, now or later. One that is held elsewhere does not.
func (g *Group) Takes(labels map[string]string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.entries, func(e *entry) bool {
		return e.takes() && HasLabels(e.placement.Labels, labels)
	})
}
