package instance

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/plural"
)

// errChanged is the cause for closing a connection when the way to its instance has changed.
var errChanged = errors.New("the instance's configuration changed")

// slot is one build's place on an instance.
type slot struct {
	group     *Group
	entry     *entry
	placement *placement // the instance in the configuration in which the build got it
	build     string
	party     string
	since     time.Time
	reserved  *Reservation // nil once a build has it
	soft      bool         // the reservation can be recalled
	recalled  bool         // it was
}

// waiter is a build without a slot, or somebody who waits for a Reservation.
type waiter struct {
	build  string // empty for a Reservation
	party  string
	demand demand
	key    string      // of the demand
	served chan served // holds at most one
}

// demand is a build's requirements for its instance. The zero value has no requirements.
type demand struct {
	tried  []string          // hosts that the build must not use, nor be reached through
	on     string            // the ID of the only suitable instance; empty for any
	labels map[string]string // that the instance must have
}

// some reports whether there are any requirements.
func (d demand) some() bool { return len(d.tried) > 0 || d.on != "" || len(d.labels) > 0 }

// key returns a text that is equal for equal demands only, and empty for the zero value.
func (d demand) key() string {
	if !d.some() {
		return ""
	}
	return fmt.Sprintf("%q %q %q", d.tried, d.on, d.labels)
}

// meets reports whether the instance meets the requirements.
func (e *entry) meets(d demand) bool {
	if d.on != "" && d.on != e.placement.ID {
		return false
	}
	return HasLabels(e.placement.Labels, d.labels) && !e.goesThrough(d.tried)
}

// HasLabels reports whether the labels of an instance include all that are wanted.
func HasLabels(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// served is the outcome of a waiter's wait.
type served struct {
	slot *slot
	err  error
}

// release releases the slot of a build that has ended. Idempotent.
func (s *slot) release() { s.vacate(0) }

// giveBack releases a slot whose build did not reach the instance, so that it does not count as a use. Idempotent.
func (s *slot) giveBack() { s.vacate(1) }

func (s *slot) vacate(unused int) {
	s.group.mu.Lock()
	defer s.group.unlock()
	s.vacateLocked(unused)
}

func (s *slot) vacateLocked(unused int) {
	e := s.entry
	if _, held := e.slots[s]; !held {
		return
	}
	delete(e.slots, s)
	if unused > 0 {
		s.group.partyLocked(s.party).passed -= s.group.strideLocked(s.party) // it has not had its turn
	}
	if s.reserved == nil {
		e.uses -= unused
	}
	if e.probe == s {
		e.probe = nil
	}
}

// unlock hands out free slots, retires connections that are no longer used, and unlocks mu. Call it instead of
// mu.Unlock after a change.
func (g *Group) unlock() {
	now := time.Now()
	g.serveLocked(now)
	g.armLocked(now)
	out := append(g.closeLocked(now), g.changed...)
	g.changed = nil
	retire := g.retire
	g.mu.Unlock()
	for _, h := range out {
		if retire != nil {
			retire(h.id, h.cause)
		}
	}
}

// serveLocked gives waiters their slots, in order, or the reason why they will not get one. Thousands may wait, so it
// looks at the entries once for each demand.
func (g *Group) serveLocked(now time.Time) {
	full := map[string]bool{} // demands that no entry with a free slot meets
	for g.waiters.Len() > 0 && g.pickLocked(demand{}, now) != nil {
		at, e := g.nextLocked(full, now)
		if at == nil {
			break
		}
		g.leaveLocked(at)
		w := at.Value.(*waiter)
		w.served <- served{slot: g.grantLocked(e, w, now)}
	}
	g.recallLocked()
	if g.waiters.Len() == 0 {
		return
	}
	refusal := g.refusalLocked(demand{}, now)
	if refusal == nil && g.picky == 0 {
		return
	}
	refusals := map[string]error{"": nil} // by demand
	var next *list.Element
	for at := g.waiters.Front(); at != nil; at = next {
		next = at.Next()
		w, err := at.Value.(*waiter), refusal
		if err == nil {
			known := false
			if err, known = refusals[w.key]; !known {
				err = g.refusalLocked(w.demand, now)
				refusals[w.key] = err
			}
		}
		if err != nil {
			g.leaveLocked(at)
			w.served <- served{err: err}
		}
	}
}

// leaveLocked removes a waiter.
func (g *Group) leaveLocked(at *list.Element) {
	w := g.waiters.Remove(at).(*waiter)
	if w.demand.some() {
		g.picky--
	}
	g.partyLocked(w.party).waiting--
}

// pickLocked returns the entry with the most free slots among those that meet a demand, or nil if all are full.
// Suspect instances come last, the one that has waited longest first.
func (g *Group) pickLocked(of demand, now time.Time) *entry {
	var best *entry
	most := 0
	for _, e := range g.suitableLocked(of) {
		free := e.free(now)
		if free == 0 || !e.meets(of) {
			continue
		}
		better := free > most
		switch {
		case best == nil:
		case best.suspect() != e.suspect():
			better = best.suspect()
		case e.suspect(): // in turn
			better = e.host.health.retryAt.Before(best.host.health.retryAt)
		}
		if best == nil || better {
			best, most = e, free
		}
	}
	return best
}

// suitableLocked returns entries that include all that meet a demand.
func (g *Group) suitableLocked(of demand) []*entry {
	if of.on == "" {
		return g.entries
	}
	if e := g.byID[of.on]; e != nil {
		return []*entry{e}
	}
	return nil
}

// take takes a slot for a waiter.
func (e *entry) take(g *Group, w *waiter, now time.Time) *slot {
	s := &slot{group: g, entry: e, placement: e.placement, build: w.build, party: w.party, since: now}
	if w.build == "" {
		s.reserved = &Reservation{slot: s, recall: make(chan struct{})}
	} else {
		e.uses++
	}
	p := g.partyLocked(w.party)
	g.passed = max(g.passed, p.passed)
	p.passed += g.strideLocked(w.party)
	e.slots[s] = struct{}{}
	e.closed = false
	return s
}

// grantLocked is take for a slot that is free.
func (g *Group) grantLocked(e *entry, w *waiter, now time.Time) *slot {
	s := e.take(g, w, now)
	if e.suspect() {
		e.probe = s
	}
	return s
}

// refusalLocked returns nil if an instance that meets a demand may take a build sooner or later, and otherwise the
// reason.
func (g *Group) refusalLocked(of demand, now time.Time) error {
	var refused, full error
	for _, e := range g.suitableLocked(of) {
		switch {
		case e.removed, !e.meets(of):
		case e.usedUp():
			full = fmt.Errorf("no instance takes builds any more: %s has had its %s", e.placement.ID,
				plural.Count(e.uses, "use"))
		case e.drained, e.elsewhere, e.host.health.refused(now) == nil:
			return nil
		default:
			refused = fmt.Errorf("no instance can be reached: instance %s: %w", e.placement.ID, e.host.health.suspect)
		}
	}
	switch {
	case refused != nil:
		return refused
	case len(of.tried) > 0:
		return errors.New("no other instance takes builds")
	case g.sources > 0, g.byHand:
		return nil
	case full != nil:
		return full
	case of.on != "":
		return unknown(of.on)
	case len(of.labels) > 0:
		return fmt.Errorf("%w with the labels %s", ErrUnknown, labels.Text(of.labels))
	default:
		return errors.New("the group has no instances")
	}
}

// armLocked sets the timer that serves waiters when the next quarantine ends.
func (g *Group) armLocked(now time.Time) {
	if g.wake != nil {
		g.wake.Stop()
		g.wake = nil
	}
	if g.waiters.Len() == 0 {
		return
	}
	var next time.Time
	for _, e := range g.entries {
		h := e.host.health
		if e.takes() && h.lacking == nil && h.quarantined(now) && (next.IsZero() || h.retryAt.Before(next)) {
			next = h.retryAt
		}
	}
	if !next.IsZero() {
		g.wake = time.AfterFunc(next.Sub(now), func() {
			g.mu.Lock()
			g.unlock()
		})
	}
}

// closeLocked forgets instances that have left the set and have no builds. It returns the connections to close, each
// once.
func (g *Group) closeLocked(now time.Time) []retirement {
	g.entries = slices.DeleteFunc(g.entries, func(e *entry) bool {
		forgotten := e.removed && len(e.slots) == 0
		if forgotten {
			g.stale = true
			delete(g.byID, e.placement.ID)
		}
		return forgotten
	})
	out := g.forgetLocked() // first, because it counts the hosts behind each host
	for _, e := range g.entries {
		switch {
		case e.takes() || len(e.slots) > 0:
			e.closed = false
		case !e.closed && e.host.behind == 0:
			e.closed = true
			out = append(out, retirement{e.placement.ID, outOfServiceError(e.state(now))})
		}
	}
	return out
}

// outOfServiceError is the cause for closing the connection of an instance that takes no more builds.
type outOfServiceError State

func (e outOfServiceError) Error() string {
	return "the instance takes no more builds: it is " + string(e)
}

// errNotNeeded is the cause for closing the connection to a jump host.
var errNotNeeded = errors.New("no instance is reached through it any more")

// retirement is a host whose connection is to be closed, with the cause.
type retirement struct {
	id    string
	cause error
}
