package instance

import (
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/instance/healthcheck"
)

// placement is where a build is placed: an instance in one version of its configuration, with its VM and daemon.
type placement struct {
	Instance
	vm     *connector.VM
	daemon *docker.Daemon
}

// entry is the group's entry of an instance: it is there as long as the instance is in the group. Group.mu guards it.
type entry struct {
	placement *placement // the current configuration; replaced, never changed
	host      *host      // how it is reached, in the current configuration
	part      string     // of the set; see Group.UpdatePart
	slots     map[*slot]struct{}
	uses      int  // number of slots handed out in all
	closed    bool // it takes no builds, has none, and its connection has been retired

	removed bool // it has left the set
	gone    bool // and its VM no longer exists
	drained bool // by an operator

	elsewhere bool // another group holds it; see Group.Share

	reading *healthcheck.Reading // of the last examination; nil before

	probe *slot // the build that tests whether a suspect instance works again; may be nil
}

// configure applies a new configuration. It reports whether the connection must be replaced.
func (e *entry) configure(in Instance, h *host) (changed bool) {
	was := e.placement
	changed = h.way != e.host.way || in.TempDir != was.TempDir || !slices.Equal(in.Runner, was.Runner)
	vm, daemon := was.vm, was.daemon
	if changed {
		vm, daemon = &connector.VM{}, &docker.Daemon{} // what was found about the old VM may be wrong now
		h.health = &health{}                           // and so may its failures
	}
	if h.health != e.host.health {
		e.probe = nil
	}
	e.host, e.removed, e.gone = h, false, false
	e.placement = &placement{Instance: in, vm: vm, daemon: daemon}
	return changed
}

// takes reports whether the instance accepts builds, now or later.
func (e *entry) takes() bool { return !e.removed && !e.elsewhere && !e.drained && !e.usedUp() }

// usedUp reports whether the instance has reached its MaxUses.
func (e *entry) usedUp() bool { return e.placement.MaxUses > 0 && e.uses >= e.placement.MaxUses }

// goesThrough reports whether the instance is one of the hosts, or is reached through one.
func (e *entry) goesThrough(hosts []string) bool {
	return slices.ContainsFunc(e.host.path, func(id string) bool { return slices.Contains(hosts, id) })
}

// free returns how many more builds the instance takes now.
func (e *entry) free(now time.Time) int {
	n := e.placement.Capacity - len(e.slots)
	switch {
	case !e.takes():
		return 0
	case e.suspect() && (e.probe != nil || e.host.health.quarantined(now)):
		return 0
	case e.suspect():
		n = min(n, 1)
	}
	if e.placement.MaxUses > 0 {
		n = min(n, e.placement.MaxUses-e.uses-e.reservations())
	}
	return max(n, 0)
}

// reservations counts the slots that no build has yet.
func (e *entry) reservations() (n int) {
	for s := range e.slots {
		if s.reserved != nil {
			n++
		}
	}
	return n
}

// suspect reports whether the instance's last dial failed, its last connection died, or its health is bad.
func (e *entry) suspect() bool { return e.host.health.reason() != nil }
