package instance

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errChanged is why a connection leaves service whose instance is to be reached in another way.
var errChanged = errors.New("the instance's configuration changed")

// slot is one build's place on an instance.
type slot struct {
	group   *Group
	machine *machine
	member  *member // the instance as it was configured when the build got it
	build   string
	since   time.Time
}

// waiter is a build without a slot.
type waiter struct {
	build  string
	tried  []string    // hosts that it does not go over
	served chan served // has room for one
}

// served is what a waiter gets.
type served struct {
	slot *slot
	err  error
}

// release gives back the slot of a build that has ended. Idempotent.
func (s *slot) release() {
	s.group.mu.Lock()
	if _, held := s.machine.slots[s]; held {
		s.machine.vacate(s)
	}
	s.group.unlock()
}

// giveBack gives back a slot that no build made use of. Idempotent.
func (s *slot) giveBack() {
	s.group.mu.Lock()
	if _, held := s.machine.slots[s]; held {
		s.machine.vacate(s)
		s.machine.uses--
	}
	s.group.unlock()
}

func (m *machine) vacate(s *slot) {
	delete(m.slots, s)
	if m.trial == s {
		m.trial = nil
	}
}

// unlock hands out what has come free, sees to the instances that are out, and unlocks mu. Whoever changed
// something calls it in place of mu.Unlock.
func (g *Group) unlock() {
	now := time.Now()
	g.serveLocked(now)
	g.armLocked(now)
	out := g.closeLocked(now)
	retire := g.retire
	g.mu.Unlock()
	if retire == nil {
		return
	}
	for _, h := range out {
		retire(h.id, h.cause)
	}
}

// serveLocked gives waiters slots, in order, or the reason why there will be none.
func (g *Group) serveLocked(now time.Time) {
	var next *list.Element
	for e := g.waiters.Front(); e != nil && g.pickLocked(nil, now) != nil; e = next {
		next = e.Next()
		w := e.Value.(*waiter)
		if m := g.pickLocked(w.tried, now); m != nil {
			g.leaveLocked(e)
			w.served <- served{slot: m.take(g, w.build, now)}
		}
	}
	if g.waiters.Len() == 0 {
		return
	}
	none := g.noneLocked(nil, now)
	if none == nil && g.choosy == 0 {
		return
	}
	for e := g.waiters.Front(); e != nil; e = next {
		next = e.Next()
		w, err := e.Value.(*waiter), none
		if err == nil && len(w.tried) > 0 {
			err = g.noneLocked(w.tried, now)
		}
		if err != nil {
			g.leaveLocked(e)
			w.served <- served{err: err}
		}
	}
}

// leaveLocked removes a waiter.
func (g *Group) leaveLocked(e *list.Element) {
	if w := g.waiters.Remove(e).(*waiter); len(w.tried) > 0 {
		g.choosy--
	}
}

// pickLocked returns the machine with the most free slots that leads over none of those, nil if none has any. One
// that may be gone comes after all others.
func (g *Group) pickLocked(tried []string, now time.Time) *machine {
	var best *machine
	most := 0
	for _, m := range g.machines {
		free := m.free(now)
		if free == 0 || m.leadsOver(tried) {
			continue
		}
		better := free > most
		if best != nil && (best.failures > 0) != (m.failures > 0) {
			better = m.failures == 0
		}
		if best == nil || better {
			best, most = m, free
		}
	}
	return best
}

// take takes a slot.
func (m *machine) take(g *Group, build string, now time.Time) *slot {
	s := &slot{group: g, machine: m, member: m.member, build: build, since: now}
	m.slots[s] = struct{}{}
	m.uses++
	m.closed = false
	if m.failures > 0 {
		m.trial = s
	}
	return s
}

// noneLocked returns why no machine, but for those that lead over tried, will take a build unless something is
// changed; nil if one may.
func (g *Group) noneLocked(tried []string, now time.Time) error {
	var refused, full error
	for _, m := range g.machines {
		switch {
		case m.removed, m.leadsOver(tried):
		case m.usedUp():
			full = fmt.Errorf("no instance takes builds any more: %s has had its %d uses", m.member.ID, m.uses)
		case m.drained, !m.hopeless(now):
			return nil
		default:
			refused = fmt.Errorf("no instance can be reached: instance %s: %w", m.member.ID, m.reason)
		}
	}
	switch {
	case refused != nil:
		return refused
	case len(tried) > 0:
		return errors.New("no other instance takes builds")
	case g.sources > 0, g.byHand:
		return nil
	case full != nil:
		return full
	default:
		return errors.New("the group has no instances")
	}
}

// armLocked sees to it that who waits is served when the next instance that was put aside comes back.
func (g *Group) armLocked(now time.Time) {
	if g.wake != nil {
		g.wake.Stop()
		g.wake = nil
	}
	if g.waiters.Len() == 0 {
		return
	}
	var next time.Time
	for _, m := range g.machines {
		if m.takes() && m.failures > 0 && now.Before(m.aside) && (next.IsZero() || m.aside.Before(next)) {
			next = m.aside
		}
	}
	if next.IsZero() {
		return
	}
	g.wake = time.AfterFunc(next.Sub(now), func() {
		g.mu.Lock()
		g.unlock()
	})
}

// closeLocked returns the hosts whose connections are to be closed, once each, and forgets the machines that
// left the set.
func (g *Group) closeLocked(now time.Time) []outHost {
	var out []outHost
	g.machines = slices.DeleteFunc(g.machines, func(m *machine) bool {
		switch {
		case m.takes() || len(m.slots) > 0:
			m.closed = false
		case m.removed:
			g.stale = true
			return true
		case !m.closed && m.host.behind == 0:
			m.closed = true
			out = append(out, outHost{m.member.ID, outError(m.state(now))})
		}
		return false
	})
	return append(out, g.forgetLocked()...)
}

// outError is why a connection leaves service whose instance takes no more builds.
type outError State

func (e outError) Error() string { return "the instance takes no more builds: it is " + string(e) }

// errNotNeeded is why the connection to a jump host leaves service.
var errNotNeeded = errors.New("no instance is reached through it any more")

// outHost is a host whose connection is to be closed, and why.
type outHost struct {
	id    string
	cause error
}
