package scaler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
)

// resume repeats the calls of a manager before, and those whose answer this manager could not keep.
func (s *Scaler) resume(ctx context.Context) {
	for _, r := range s.record.Requests {
		if !r.Answered && !s.creating {
			s.create(ctx, r)
		}
	}
	if len(s.record.Deletes) == 0 || s.deleting {
		return
	}
	busy, err := s.host.Busy(ctx)
	if err != nil {
		s.log.Warn("cannot see which builds run", "error", err)
		return
	}
	for _, id := range s.record.Deletes {
		if busy[id] || s.look.VMs[id].Used > 0 { // the policy decides again
			s.record.Deletes = nil
			s.keep(ctx)
			return
		}
	}
	s.delete(ctx)
}

// decide asks the policy, and does as it says.
func (s *Scaler) decide(ctx context.Context, now time.Time) {
	state := elastic.State{Waiting: s.look.Waiting, RetryAt: s.retryAt, Throttle: s.throttle}
	for _, r := range s.record.Requests {
		state.Making += r.Left
	}
	drained := map[string]bool{}
	for _, id := range s.record.Drained {
		drained[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		state.VMs = append(state.VMs, s.observe(id, drained[id], now))
	}
	d := s.policy.Next(state, now)
	s.throttle = d.Throttle
	s.show(d, state.VMs)
	if !s.drain(ctx, d, drained) {
		return
	}
	if d.Create > 0 && !s.begin(ctx, d.Create, now) {
		s.throttle.Tokens += float64(d.Create) // not used
	}
	if len(d.Delete) > 0 {
		s.end(ctx, d, now)
	}
}

// observe returns a VM as the policy knows it.
func (s *Scaler) observe(id string, drained bool, now time.Time) elastic.VM {
	k := s.known[id]
	u, has := s.look.VMs[id]
	s.progress(id, u, now)
	vm := elastic.VM{
		ID: id, Phase: elastic.Running, Created: k.vm.Created, IdleSince: k.busy, Capacity: k.vm.Capacity,
		Used: u.Used, Uses: u.Uses, Failures: k.failures, Protected: k.vm.Protected,
		Draining: drained && u.Drained, Closed: u.Closed && !drained, Ill: u.Ill,
	}
	if vm.Created.IsZero() || vm.Created.After(now) {
		vm.Created = k.first
	}
	switch {
	case !k.deleting.IsZero() || k.vm.State == source.Deleting || slices.Contains(s.record.Deletes, id):
		vm.Phase = elastic.Deleting
	case k.vm.State == source.Stopped:
		vm.Phase = elastic.Stopped
	case !k.ready:
		vm.Phase = elastic.Creating
		if k.vm.State != source.Running { // no build can come there
			vm.Draining = drained
			break
		}
		fallthrough
	default:
		vm.Held = !has
		vm.Closed = vm.Closed || k.ready && !u.Ready && !drained
	}
	return vm
}

// progress notes how a VM is used.
func (s *Scaler) progress(id string, u Usage, now time.Time) {
	k := s.known[id]
	if u.Ready && !k.ready && k.vm.State == source.Running {
		k.ready, k.busy, k.failures = true, now, 0
		s.failures, s.retryAt = 0, time.Time{}
		s.host.Note("ready", id, fmt.Sprintf("it was reached %v after it was listed", now.Sub(k.first).Round(time.Second)))
	}
	if u.Used > 0 || u.Uses > k.uses {
		k.busy = now
	}
	k.uses = u.Uses
	if k.ready || k.vm.State == source.Stopped || k.vm.State == source.Deleting {
		return
	}
	if n := int(now.Sub(k.first) / s.cfg.ReadyTimeout); n > k.failures {
		k.failures = n
		s.backOff(now)
		s.log.Warn("a VM does not become ready", "instance", id, "after", now.Sub(k.first).Round(time.Second))
	}
}

// backOff asks for no VMs for a time, after a failure.
func (s *Scaler) backOff(now time.Time) {
	s.failures++
	s.retryAt = now.Add(backoff(s.failures))
}

// drain changes which VMs take no builds. If it returns false, this manager must not do more.
func (s *Scaler) drain(ctx context.Context, d elastic.Decision, drained map[string]bool) bool {
	was := len(drained)
	maps.DeleteFunc(drained, func(id string, _ bool) bool { return s.known[id] == nil })
	changed := len(drained) < was || len(d.Undrain) > 0
	for _, id := range d.Drain {
		if !drained[id] { // else it has no effect yet
			drained[id], changed = true, true
			s.host.Note("drain", id, d.Notes[id])
		}
	}
	if !changed {
		return true
	}
	for _, id := range d.Undrain {
		delete(drained, id)
		s.host.Note("undrain", id, d.Notes[id])
	}
	s.record.Drained = slices.Sorted(maps.Keys(drained))
	if !s.keep(ctx) {
		return false
	}
	s.applyDrains()
	return true
}

// begin asks for VMs, unless a call is under way.
func (s *Scaler) begin(ctx context.Context, count int, now time.Time) bool {
	if s.creating {
		return false
	}
	r := &request{ID: newID(), Count: count, Left: count, At: now}
	s.record.Requests = append(s.record.Requests, r)
	if !s.keep(ctx) {
		return false
	}
	s.create(ctx, r)
	return true
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// create sends a request that is kept to the source.
func (s *Scaler) create(ctx context.Context, r *request) {
	s.creating = true
	s.host.Note("create", "", fmt.Sprintf("%d VMs, request %s", r.Count, r.ID))
	asked := source.Request{ID: r.ID, Count: r.Count, Labels: s.cfg.Labels, UserData: s.cfg.UserData}
	var accepted int
	var ids []string
	var err error
	s.call(ctx, func() { accepted, ids, err = s.cfg.Source.Create(ctx, asked) }, func() {
		s.creating = false
		now := time.Now()
		if err == nil && accepted == 0 {
			err = errors.New("operation create of the source: it has accepted no VM")
		}
		s.failed(opCreate, err)
		s.listAt = now // it tells more
		at := slices.IndexFunc(s.record.Requests, func(other *request) bool { return other.ID == r.ID })
		if !s.mine || at < 0 { // it is asked for again
			return
		}
		if err != nil {
			s.backOff(now)
			s.record.Requests = slices.Delete(s.record.Requests, at, at+1)
		} else {
			r := s.record.Requests[at]
			r.Answered, r.IDs, r.Left = true, ids, max(r.Left-(r.Count-accepted), 0)
		}
		s.keep(ctx)
	})
}

// end asks for the end of VMs with one reason, unless a call is under way.
func (s *Scaler) end(ctx context.Context, d elastic.Decision, now time.Time) {
	if s.deleting || now.Before(s.deleteAt) {
		return
	}
	busy, err := s.host.Busy(ctx)
	if err != nil {
		s.log.Warn("cannot see which builds run", "error", err)
		return
	}
	s.record.Deletes = nil
	for _, id := range d.Delete {
		if !busy[id] && len(s.record.Deletes) < maxDeleted &&
			(len(s.record.Deletes) == 0 || d.Notes[id] == s.record.Reason) {
			s.record.Deletes, s.record.Reason = append(s.record.Deletes, id), d.Notes[id]
		}
	}
	if len(s.record.Deletes) > 0 && s.keep(ctx) {
		s.delete(ctx)
	}
}

// delete sends the deletes that are kept to the source.
func (s *Scaler) delete(ctx context.Context) {
	s.deleting = true
	ids, reason := slices.Clone(s.record.Deletes), s.record.Reason
	for _, id := range ids {
		s.host.Note("delete", id, reason)
	}
	var deleted []string
	var err error
	s.call(ctx, func() { deleted, err = s.cfg.Source.Delete(ctx, ids, reason) }, func() {
		s.deleting = false
		now := time.Now()
		s.failed(opDelete, err)
		if s.deleteFailures++; err == nil && len(deleted) == len(ids) {
			s.deleteFailures = 0
		} else {
			s.deleteAt = now.Add(backoff(s.deleteFailures))
		}
		for _, id := range deleted {
			if k := s.known[id]; k != nil {
				k.deleting = now
			}
		}
		s.listAt = now
		if s.mine {
			s.record.Deletes, s.record.Reason = nil, ""
			s.keep(ctx)
		}
	})
}

// show shows how the group stands.
func (s *Scaler) show(d elastic.Decision, vms []elastic.VM) {
	status := Status{
		Name: s.cfg.Name, At: time.Now(), Source: s.info.Name, Scales: s.mine, Max: s.cfg.Policy.MaxInstances,
		Demand: d.Demand, Supply: d.Supply, Room: d.Room, Missing: d.Missing, Notes: d.Notes, Waiting: s.look.Waiting,
	}
	if s.info.Version != "" {
		status.Source += " " + s.info.Version
	}
	if s.info.Max > 0 {
		status.Max = min(status.Max, s.info.Max)
	}
	for _, r := range s.record.Requests {
		status.Making += r.Left
	}
	for _, vm := range vms {
		switch {
		case vm.Phase == elastic.Deleting || vm.Draining:
			status.Leaving++
		case vm.Phase == elastic.Creating:
			status.Making++
		case vm.Phase == elastic.Running && !vm.Closed:
			status.Ready++
		default:
			status.Other++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status.Failures = s.status.Failures
	s.status = status
}
