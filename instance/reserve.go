package instance

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"time"
)

// Reservation is a slot on an instance that is held before it is known for which build: a door to a server needs a
// slot before it asks for a job, because a job that was taken cannot be given back. Executor.Queue gives it to a
// build; its holder always calls Release at the end. It is safe for concurrent use.
type Reservation struct {
	slot   *slot
	recall chan struct{} // closed when the slot shall be given back
}

// Reserve waits for a slot, as a build of a party does, on an instance with these labels. Parties get slots in turn:
// see SetShares. It fails where a build that waits for a slot would.
func (g *Group) Reserve(ctx context.Context, party string, labels map[string]string) (*Reservation, error) {
	s, err := g.await(ctx, g.queue("", party, demand{labels: maps.Clone(labels)}, false))
	if err != nil {
		return nil, err
	}
	return s.reserved, nil
}

// TryReserve is Reserve for a slot that is free and that nobody waits for. Without such a slot it returns nil.
func (g *Group) TryReserve(party string, labels map[string]string) *Reservation {
	g.mu.Lock()
	defer g.unlock()
	now := time.Now()
	of := demand{labels: maps.Clone(labels)}
	e := g.pickLocked(of, now)
	if e == nil {
		return nil
	}
	return g.grantLocked(e, &waiter{party: party, demand: of}, now).reserved
}

// Instance returns the ID of the instance.
func (r *Reservation) Instance() string { return r.slot.placement.ID }

// Soften says that the slot may be given back, for instance because a server that was asked has no job so far. The
// channel is closed when a waiting build could use the slot and finds no other, or when the instance takes no builds
// any more. The holder then calls Release, unless it has got a job meanwhile.
func (r *Reservation) Soften() <-chan struct{} {
	g := r.slot.group
	g.mu.Lock()
	defer g.unlock()
	r.slot.soft = true
	return r.recall
}

// Release gives the slot back, unless a build has it. Idempotent. A nil Reservation has no slot.
func (r *Reservation) Release() {
	if r == nil {
		return
	}
	r.slot.group.mu.Lock()
	defer r.slot.group.unlock()
	if r.slot.reserved != nil {
		r.slot.vacateLocked(1)
	}
}

// use turns a reservation into the slot of a build. It returns nil, and the reservation is released, if it was released
// before, or if the instance does not meet the demand or takes no builds any more.
func (r *Reservation) use(build string, of demand) *slot {
	if r == nil {
		return nil
	}
	s := r.slot
	s.group.mu.Lock()
	defer s.group.unlock()
	if _, held := s.entry.slots[s]; !held || s.reserved == nil {
		return nil
	}
	if !s.entry.meets(of) || !s.entry.takes() {
		s.vacateLocked(1)
		return nil
	}
	s.reserved, s.soft, s.build, s.since = nil, false, build, time.Now()
	s.placement = s.entry.placement // the configuration may have changed
	s.entry.uses++
	return s
}

// Queue gives the build its place in the queue for a slot, where Prepare then waits: builds whose Queue or Prepare is
// called later are behind it. Without Queue, Prepare does so. If room, which may be nil, is a slot that suits the
// build, the build has that slot, and does not wait. Cleanup gives place or slot up.
func (e *Executor) Queue(room *Reservation) {
	group := e.provider.cfg.Group
	if s := room.use(e.build.ID, e.demand()); s != nil {
		if !e.keep(func() { e.reserved = s }) {
			s.giveBack()
		}
		return
	}
	place := group.queue(e.build.ID, e.build.Party, e.demand(), false)
	if !e.keep(func() { e.place = place }) {
		group.leave(place)
	}
}

// recallLocked asks for soft reservations back: those of instances that take no builds, and one for each waiter that
// could use it, of another party, oldest first.
func (g *Group) recallLocked() {
	var soft []*slot
	for _, e := range g.entries {
		for s := range e.slots {
			switch {
			case !s.soft:
			case !e.takes():
				s.recallLocked()
			default:
				soft = append(soft, s)
			}
		}
	}
	for at := g.waiters.Front(); at != nil && len(soft) > 0; at = at.Next() {
		w := at.Value.(*waiter)
		fits := func(s *slot) bool { return s.party != w.party && s.entry.meets(w.demand) }
		i := slices.IndexFunc(soft, func(s *slot) bool { return s.recalled && fits(s) }) // it is on its way
		if i < 0 {
			i = slices.IndexFunc(soft, fits)
		}
		if i >= 0 {
			soft[i].recallLocked()
			soft = slices.Delete(soft, i, i+1)
		}
	}
}

func (s *slot) recallLocked() {
	if !s.recalled {
		s.recalled = true
		close(s.reserved.recall)
	}
}

// SetShares sets the shares of parties: while several wait for slots, they get them in turn, each in proportion to its
// share, so that no party waits for ever. A party that is not named has the share 1, and so has one with less. The
// builds of a party get slots in the order in which they came.
func (g *Group) SetShares(shares map[string]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shares = maps.Clone(shares)
}

// party is a party's place among those that wait for slots: the one with the least passed is next. Each slot adds to
// it, the less the larger the party's share (stride scheduling).
type party struct {
	passed  float64
	waiting int // how many of it wait
}

// partyLocked returns the party of a name. One that begins to wait is not ahead of those that have waited.
func (g *Group) partyLocked(name string) *party {
	if g.parties == nil {
		g.parties = map[string]*party{}
	}
	p := g.parties[name]
	if p == nil {
		p = &party{passed: g.passed}
		g.parties[name] = p
	}
	return p
}

// enterLocked adds a waiter to a party.
func (g *Group) enterLocked(name string) {
	p := g.partyLocked(name)
	if p.waiting == 0 {
		p.passed = max(p.passed, g.passed)
	}
	p.waiting++
}

// strideLocked returns the part of a turn that a slot is for a party.
func (g *Group) strideLocked(party string) float64 { return 1 / float64(max(g.shares[party], 1)) }

// nextLocked returns the waiter that gets a free slot next, and the instance for it, or nil. Demands in full are met by
// no free slot; it adds those that it finds.
func (g *Group) nextLocked(full map[string]bool, now time.Time) (next *list.Element, of *entry) {
	parties := 0 // that wait
	for _, p := range g.parties {
		if p.waiting > 0 {
			parties++
		}
	}
	seen := map[string]bool{}
	for at := g.waiters.Front(); at != nil && len(seen) < parties; at = at.Next() {
		w := at.Value.(*waiter)
		if full[w.key] || seen[w.party] {
			continue
		}
		e := g.pickLocked(w.demand, now)
		if e == nil {
			full[w.key] = true // slots only become fewer here
			continue
		}
		seen[w.party] = true
		if next == nil || g.parties[w.party].passed < g.parties[next.Value.(*waiter).party].passed {
			next, of = at, e
		}
	}
	return next, of
}
