package instance

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// State says whether an instance takes builds.
type State string

// The states.
const (
	// Ready: it takes builds.
	Ready State = "ready"
	// Suspect: its connection died. It gets one build at a time until it was reached again.
	Suspect State = "suspect"
	// Aside: it could not be reached, and gets no build until RetryAt.
	Aside State = "aside"
	// Draining: an operator lets it take no new builds.
	Draining State = "draining"
	// UsedUp: it has had all the builds it may.
	UsedUp State = "used up"
	// Removed: it left the set, and still has builds.
	Removed State = "removed"
)

// ConnState says what there is of a connection.
type ConnState string

// The states of a connection.
const (
	ConnNone    ConnState = "none"    // none was made, or it was closed
	ConnDialing ConnState = "dialing" // one is being made
	ConnUp      ConnState = "up"      // one is in service
	ConnLeaving ConnState = "leaving" // it takes no new builds, and closes when its last has ended
)

// Stat is a snapshot of a Provider.
type Stat struct {
	Instances []VMStat
	JumpHosts []JumpStat // that are no instances, sorted by ID
	Waiting   int        // builds without a slot
}

// VMStat is a snapshot of one instance and its connection.
type VMStat struct {
	ID, Addr       string
	Labels         map[string]string
	State          State
	Reason         string      // why it is Suspect or Aside
	RetryAt        time.Time   // when it comes back from Aside; else zero
	Used, Capacity int         // slots
	Uses, MaxUses  int         // slots handed out in all, and how many may be, 0 for any number
	Builds         []BuildStat // those that have the slots, oldest first

	Connections int              // made since the Provider was; one is in use at a time
	ConnState   ConnState        // of the newest
	Conn        mux.Stat         // of the newest connection; zero before the first
	Route       connector.Choice // what builds take there; empty while unknown
	Program     program.Program  // the step runner that was found there; zero while unknown
}

// JumpStat is a snapshot of a jump host and its connection.
type JumpStat struct {
	ID, Addr    string
	Connections int       // made since the Provider was; one is in use at a time
	ConnState   ConnState // of the newest
	Conn        mux.Stat  // of the newest connection; zero before the first
}

// BuildStat is a snapshot of one build that has its slot.
type BuildStat struct {
	ID    string
	Since time.Time // when it got the slot
}

// Stat returns a snapshot.
func (p *Provider) Stat() Stat {
	conns := p.conns.states()
	s := p.cfg.Group.stat()
	for i := range s.Instances {
		s.Instances[i].ConnState = cmp.Or(conns[s.Instances[i].ID], ConnNone)
	}
	for i := range s.JumpHosts {
		s.JumpHosts[i].ConnState = cmp.Or(conns[s.JumpHosts[i].ID], ConnNone)
	}
	return s
}

func connState(k pool.KeyStat) ConnState {
	switch n := len(k.Conns); {
	case n > 0 && !k.Conns[n-1].Draining:
		return ConnUp
	case k.Dialing:
		return ConnDialing
	case n > 0:
		return ConnLeaving
	default:
		return ConnNone
	}
}

func (g *Group) stat() Stat {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	s := Stat{Waiting: g.waiters.Len(), Instances: make([]VMStat, len(g.machines))}
	instances := map[*host]bool{}
	for i, m := range g.machines {
		s.Instances[i] = m.stat(now)
		instances[m.host] = true
	}
	for _, h := range g.hosts {
		if !instances[h] {
			s.JumpHosts = append(s.JumpHosts, JumpStat{ID: h.id, Addr: h.addr, Connections: h.connections, Conn: h.connStat()})
		}
	}
	slices.SortFunc(s.JumpHosts, func(a, b JumpStat) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

func (m *machine) stat(now time.Time) VMStat {
	in := m.member
	s := VMStat{
		ID:          in.ID,
		Addr:        in.Addr,
		Labels:      maps.Clone(in.Labels),
		State:       m.state(now),
		Used:        len(m.slots),
		Capacity:    in.Capacity,
		Uses:        m.uses,
		MaxUses:     in.MaxUses,
		Connections: m.host.connections,
		Conn:        m.host.connStat(),
		Route:       in.vm.Choice(),
		Program:     in.vm.Program(),
	}
	if s.State == Aside {
		s.RetryAt = m.aside
	}
	if s.State == Aside || s.State == Suspect {
		s.Reason = reasonText(m.reason)
	}
	for slot := range m.slots {
		s.Builds = append(s.Builds, BuildStat{ID: slot.build, Since: slot.since})
	}
	slices.SortFunc(s.Builds, func(a, b BuildStat) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return s
}

func (m *machine) state(now time.Time) State {
	switch {
	case m.removed:
		return Removed
	case m.drained:
		return Draining
	case m.usedUp():
		return UsedUp
	case m.failures > 0 && now.Before(m.aside):
		return Aside
	case m.failures > 0:
		return Suspect
	default:
		return Ready
	}
}

// reasonText leaves out what the pool says of the instance, which is known here.
func reasonText(err error) string {
	if failed := (*pool.DialError)(nil); errors.As(err, &failed) {
		return failed.Err.Error()
	}
	return err.Error()
}
