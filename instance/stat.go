package instance

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// State is whether an instance takes builds, and if not, why.
type State string

// The states.
const (
	// Ready: it takes builds.
	Ready State = "ready"
	// Suspect: its connection died, or a quarantine has ended. It gets one build at a time until it is reached again, or
	// starts a build.
	Suspect State = "suspect"
	// Quarantined: it could not be reached, or could not start a build, and gets no build until RetryAt. The text "aside"
	// is kept for dashboards of earlier versions.
	Quarantined State = "aside"
	// Draining: an operator stopped it from taking new builds.
	Draining State = "draining"
	// UsedUp: it has reached its MaxUses.
	UsedUp State = "used up"
	// Elsewhere: another group holds it; see Group.Share.
	Elsewhere State = "elsewhere"
	// Removed: it has left the set, but still has builds.
	Removed State = "removed"
)

// Stat is a snapshot of a Provider.
type Stat struct {
	Instances []VMStat
	JumpHosts []VMStat // jump hosts that are not instances, sorted by ID; only ID, Addr and the connection are set
	Waiting   int      // builds without a slot
	Held      int      // of those, builds for which every instance that fits is quarantined, or being probed
}

// VMStat is a snapshot of one instance or jump host, and its connection.
type VMStat struct {
	ID, Addr string

	Connections int        // number made by this Provider; one is in use at a time
	ConnState   pool.State // of the newest
	Conn        mux.Stat   // of the newest connection; zero before the first

	Labels         map[string]string
	State          State
	Reason         string               // why it is Suspect or Quarantined
	Ill            time.Time            // since when it is one of these, even if it is drained; zero otherwise
	Health         *healthcheck.Reading // of the last examination; nil before
	RetryAt        time.Time            // when its quarantine ends; zero otherwise
	Used, Capacity int                  // slots
	Uses, MaxUses  int                  // slots handed out in all, and their limit; 0: no limit
	Builds         []struct {           // the builds that have the slots, oldest first
		ID    string
		Since time.Time // when it got the slot
	}

	Route     connector.Choice  // of the builds there; empty while unknown
	Isolation program.Isolation // of the last build there that reported it
	Program   program.Program   // the step runner found there; zero while unknown
}

// Stat returns a snapshot.
func (p *Provider) Stat() Stat {
	conns := p.conns.states()
	s := p.cfg.Group.stat()
	for _, all := range [][]VMStat{s.Instances, s.JumpHosts} {
		for i := range all {
			all[i].ConnState = cmp.Or(conns[all[i].ID], pool.None)
		}
	}
	return s
}

func (g *Group) stat() Stat {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	s := Stat{Waiting: len(g.waitingLocked()), Instances: make([]VMStat, len(g.entries))}
	s.Held = g.heldLocked()
	instances := map[*host]bool{}
	for i, e := range g.entries {
		s.Instances[i] = e.stat(now)
		instances[e.host] = true
	}
	for _, h := range g.hosts {
		if !instances[h] {
			s.JumpHosts = append(s.JumpHosts, h.stat())
		}
	}
	slices.SortFunc(s.JumpHosts, func(a, b VMStat) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// heldLocked counts the builds without a slot for which every instance that fits is quarantined, or being probed.
func (g *Group) heldLocked() (n int) {
	isHeld := map[string]bool{} // by demand
	for at := g.waiters.Front(); at != nil; at = at.Next() {
		w := at.Value.(*waiter)
		held, known := isHeld[w.key]
		if !known {
			fit, sound := false, false
			for _, e := range g.suitableLocked(w.demand) {
				if e.takes() && e.meets(w.demand) {
					fit, sound = true, sound || !e.suspect()
				}
			}
			held = fit && !sound
			isHeld[w.key] = held
		}
		if held && w.build != "" {
			n++
		}
	}
	return n
}

// stat returns the part of a VMStat that a jump host also has. Callers hold Group.mu.
func (h *host) stat() VMStat {
	s := VMStat{ID: h.id, Addr: h.addr, Connections: h.connections}
	if conn, ok := h.conn.(*mux.Conn); ok && conn != nil {
		s.Conn = conn.Stat()
	}
	return s
}

func (e *entry) stat(now time.Time) VMStat {
	in, s := e.placement, e.host.stat()
	s.Addr, s.Labels = in.Addr, maps.Clone(in.Labels)
	s.State = e.state(now)
	slots := e.slotsInOrder()
	s.Used, s.Capacity = len(slots), in.Capacity
	s.Uses, s.MaxUses = e.uses, in.MaxUses
	s.Route, s.Isolation, s.Program = in.vm.Choice(), in.vm.Isolation(), in.vm.Program()
	if s.State == Quarantined {
		s.RetryAt = e.host.health.retryAt
	}
	if s.State == Quarantined || s.State == Suspect {
		s.Reason = reasonText(e.host.health.reason())
	}
	s.Ill, s.Health = e.host.health.ill, e.reading
	s.Builds = slices.Grow(s.Builds, len(slots))[:len(slots)]
	for i, slot := range slots {
		s.Builds[i].ID, s.Builds[i].Since = slot.build, slot.since
	}
	return s
}

// slotsInOrder returns the slots that builds have, oldest first.
func (e *entry) slotsInOrder() []*slot {
	all := slices.SortedFunc(maps.Keys(e.slots), func(a, b *slot) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.build, b.build))
	})
	return slices.DeleteFunc(all, func(s *slot) bool { return s.reserved != nil })
}

func (e *entry) state(now time.Time) State {
	switch {
	case e.removed:
		return Removed
	case e.elsewhere:
		return Elsewhere
	case e.drained:
		return Draining
	case e.usedUp():
		return UsedUp
	case e.host.health.quarantined(now):
		return Quarantined
	case e.suspect():
		return Suspect
	default:
		return Ready
	}
}

// reasonText returns the text of err without the instance's name.
func reasonText(err error) string {
	if failed := (*dialError)(nil); errors.As(err, &failed) {
		return failed.err.Error()
	}
	return err.Error()
}
