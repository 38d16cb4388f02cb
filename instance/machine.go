package instance

import (
	"errors"
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/pool"
)

// An instance that could not be reached is left alone for asideBase, doubled with each failure in a row up
// to asideMax. After a failure that another try does not cure it is asideMax, as in the pool.
const (
	asideBase = time.Second
	asideMax  = 30 * time.Second
)

// member is an instance as it was configured at some time.
type member struct {
	Instance
	vm *connector.VM
}

// machine is an instance for as long as it is in the group. Group.mu guards it.
type machine struct {
	member *member // as it is configured now; replaced, never changed
	host   *host   // how it is reached, as it is configured now
	slots  map[*slot]struct{}
	uses   int  // slots handed out in all
	closed bool // it takes no builds, has none, and its connection was told to go

	removed bool // it left the set
	gone    bool // and was said to be no more
	drained bool // by an operator

	failures  int       // dials that failed since it was last reached; 1 also after a connection that died
	reason    error     // of the last of them
	permanent bool      // and another try does not cure it
	aside     time.Time // it gets no build before
	trial     *slot     // the build that tries whether it is back, nil if none
}

func newMachine(in Instance, h *host) *machine {
	return &machine{member: &member{Instance: in, vm: &connector.VM{}}, host: h, slots: map[*slot]struct{}{}}
}

// configure takes over an instance's new configuration. It reports whether its connection is to be another.
func (m *machine) configure(in Instance, h *host) (changed bool) {
	was := m.member
	changed = h.way != m.host.way || in.TempDir != was.TempDir || !slices.Equal(in.Runner, was.Runner)
	m.host, m.removed, m.gone = h, false, false
	vm := was.vm
	if changed {
		vm = &connector.VM{} // what was found out need hold no more
		m.recovered()        // that too
	}
	m.member = &member{Instance: in, vm: vm}
	return changed
}

// takes reports whether the instance takes builds, if not necessarily now.
func (m *machine) takes() bool { return !m.removed && !m.drained && !m.usedUp() }

// usedUp reports whether the instance has had all the builds it may.
func (m *machine) usedUp() bool { return m.member.MaxUses > 0 && m.uses >= m.member.MaxUses }

// leadsOver reports whether the machine is one of those hosts, or is reached through one.
func (m *machine) leadsOver(hosts []string) bool {
	return len(hosts) > 0 && slices.ContainsFunc(m.host.path, func(id string) bool { return slices.Contains(hosts, id) })
}

// free is how many builds the instance takes now.
func (m *machine) free(now time.Time) int {
	n := m.member.Capacity - len(m.slots)
	switch {
	case !m.takes():
		return 0
	case m.failures > 0 && (m.trial != nil || now.Before(m.aside)):
		return 0
	case m.failures > 0:
		n = min(n, 1)
	}
	if m.member.MaxUses > 0 {
		n = min(n, m.member.MaxUses-m.uses)
	}
	return max(n, 0)
}

// hopeless reports whether waiting for the instance would only delay the answer that is known.
func (m *machine) hopeless(now time.Time) bool { return m.permanent && now.Before(m.aside) }

// setAside notes that a dial failed. All builds that waited for it come to say so.
func (m *machine) setAside(err error, now time.Time) {
	failed := (*pool.DialError)(nil)
	switch {
	case errors.Is(err, errChanged), !errors.As(err, &failed):
		return // no fault of the instance's
	case errors.Is(m.reason, failed):
		return
	}
	m.failures++
	m.reason, m.permanent = failed, failed.Permanent
	pause := asideMax
	if !m.permanent {
		pause = asideBase
		for n := 1; n < m.failures && pause < asideMax; n++ {
			pause = min(2*pause, asideMax)
		}
	}
	m.aside = now.Add(pause)
}

// recovered notes that the instance was reached, or may be by now.
func (m *machine) recovered() {
	m.failures, m.reason, m.permanent, m.aside, m.trial = 0, nil, false, time.Time{}, nil
}
