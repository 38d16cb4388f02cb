package instance

import (
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place/docker"
)

// member is an instance in one version of its configuration.
type member struct {
	Instance
	vm     *connector.VM
	daemon *docker.Daemon
}

// machine is an instance as long as it is in the group. Group.mu guards it.
type machine struct {
	member *member // the current configuration; replaced, never changed
	host   *host   // how it is reached, in the current configuration
	slots  map[*slot]struct{}
	uses   int  // number of slots handed out in all
	closed bool // it takes no builds, has none, and its connection has been retired

	removed bool // it has left the set
	gone    bool // and its machine no longer exists
	drained bool // by an operator

	elsewhere bool // another group holds it; see Group.Share

	probe *slot // the build that tests whether a suspect instance works again; may be nil
}

// configure applies a new configuration. It reports whether the connection must be replaced.
func (m *machine) configure(in Instance, h *host) (changed bool) {
	was := m.member
	changed = h.way != m.host.way || in.TempDir != was.TempDir || !slices.Equal(in.Runner, was.Runner)
	vm, daemon := was.vm, was.daemon
	if changed {
		vm, daemon = &connector.VM{}, &docker.Daemon{} // what was found about the old machine may be wrong now
		h.health = &health{}                           // and so may its failures
	}
	if h.health != m.host.health {
		m.probe = nil
	}
	m.host, m.removed, m.gone = h, false, false
	m.member = &member{Instance: in, vm: vm, daemon: daemon}
	return changed
}

// takes reports whether the instance accepts builds, now or later.
func (m *machine) takes() bool { return !m.removed && !m.elsewhere && !m.drained && !m.usedUp() }

// usedUp reports whether the instance has reached its MaxUses.
func (m *machine) usedUp() bool { return m.member.MaxUses > 0 && m.uses >= m.member.MaxUses }

// goesThrough reports whether the machine is one of the hosts, or is reached through one.
func (m *machine) goesThrough(hosts []string) bool {
	return slices.ContainsFunc(m.host.path, func(id string) bool { return slices.Contains(hosts, id) })
}

// free returns how many more builds the instance takes now.
func (m *machine) free(now time.Time) int {
	n := m.member.Capacity - len(m.slots)
	switch {
	case !m.takes():
		return 0
	case m.suspect() && (m.probe != nil || m.host.health.quarantined(now)):
		return 0
	case m.suspect():
		n = min(n, 1)
	}
	if m.member.MaxUses > 0 {
		n = min(n, m.member.MaxUses-m.uses)
	}
	return max(n, 0)
}

// suspect reports whether the instance's last dial failed, or its last connection died.
func (m *machine) suspect() bool { return m.host.health.suspect != nil }

// recovered records that the instance was reached.
func (m *machine) recovered() { *m.host.health, m.probe = health{}, nil }
