package scaler

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/stepmux/stepmux/instance/elastic/source"
)

// known is a VM that was listed.
type known struct {
	vm       source.VM
	first    time.Time // when it was listed first
	missing  int       // lists in a row that did not have it
	kept     bool      // the store has it as it is
	ready    bool      // it has taken builds, or could
	busy     time.Time // when it was in use the last time, or since when it is ready
	uses     int
	failures int       // how many times of ReadyTimeout it was not ready
	deleting time.Time // when the source was told to delete it
}

func newKnown(vm source.VM, now time.Time) *known { return &known{vm: vm, first: now, busy: now} }

// errEmpty refuses a list.
var errEmpty = errors.New("operation list of the source: the list is empty, and VMs of the list before still answer")

// list begins to list the VMs.
func (s *Scaler) list(ctx context.Context) {
	var info source.Info
	var vms []source.VM
	var err error
	asked := s.asked
	s.listing = true
	s.call(ctx, func() {
		if !asked {
			info, err = s.cfg.Source.Info(ctx)
		}
		if err == nil {
			vms, err = s.cfg.Source.List(ctx)
		}
	}, func() {
		if s.listing = false; err == nil && !asked {
			s.setInfo(info)
		}
		now := time.Now()
		if err == nil {
			err = s.take(ctx, vms, now)
		}
		s.failed(opList, err)
		s.listAt = now.Add(s.period())
	})
}

// setInfo notes the description of the source.
func (s *Scaler) setInfo(info source.Info) {
	s.asked, s.info = true, info
	if info.Max > 0 && info.Max < s.cfg.Policy.MaxInstances {
		s.log.Warn("the source has less VMs than max-instances", "max", info.Max)
		s.policy = s.policy.AtMost(info.Max)
	}
}

// period returns the time until the next list.
func (s *Scaler) period() time.Duration {
	if s.empties > 0 { // VMs have a whole period to answer
		return s.cfg.Period
	}
	for _, k := range s.known {
		if !k.ready || !k.deleting.IsZero() || k.missing > 0 {
			return max(s.cfg.Period/hasty, time.Second)
		}
	}
	if len(s.record.Requests) > 0 {
		return max(s.cfg.Period/hasty, time.Second)
	}
	return s.cfg.Period
}

// take takes a list over. If it returns an error, nothing has changed.
func (s *Scaler) take(ctx context.Context, vms []source.VM, now time.Time) error {
	if len(vms) == 0 && s.expectsVMs() {
		s.empties++
		if alive, err := s.answers(ctx); err != nil || alive {
			return cmp.Or(err, errEmpty)
		}
		if s.empties < 2 {
			return nil // the next one tells
		}
	} else {
		s.empties = 0
	}
	before, fresh := s.known, map[string]bool{}
	s.known = make(map[string]*known, len(vms))
	for _, vm := range vms {
		k := before[vm.ID]
		if k == nil {
			k = newKnown(vm, now)
			fresh[vm.ID] = true
		}
		next := *k
		next.vm, next.missing, next.kept = vm, 0, k.kept && reflect.DeepEqual(k.vm, vm)
		if now.Sub(k.deleting) > deletedAfter && vm.State == source.Running {
			next.deleting = time.Time{}
		}
		s.known[vm.ID] = &next
	}
	for id, k := range before {
		isGone := s.empties > 0 || k.missing > 0 || !k.deleting.IsZero() || k.vm.State == source.Deleting
		if s.known[id] == nil && !isGone {
			next := *k
			next.missing++
			s.known[id] = &next
		}
	}
	if err := s.host.Use(ctx, s.usable()); err != nil {
		s.known = before
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if k := before[id]; s.known[id] == nil {
			why := "it was deleted"
			if k.deleting.IsZero() && k.vm.State != source.Deleting {
				why = "the source does not list it any more"
			}
			s.host.Note("gone", id, why)
		}
	}
	s.listed = true
	s.expect(ctx, fresh, now)
	return nil
}

// expectsVMs reports whether a list should have VMs.
func (s *Scaler) expectsVMs() bool {
	for _, k := range s.known {
		if k.deleting.IsZero() && k.vm.State != source.Deleting {
			return true
		}
	}
	return false
}

// answers reports whether a known VM has a connection.
func (s *Scaler) answers(ctx context.Context) (bool, error) {
	look, err := s.host.Look(ctx)
	for id := range s.known {
		if look.VMs[id].Alive {
			return true, err
		}
	}
	return false, err
}

// usable returns the VMs that have an address, in the order of their IDs.
func (s *Scaler) usable() (vms []source.VM) {
	for _, k := range s.known {
		if k.vm.Address != "" && k.vm.State != source.Stopped && (k.vm.State == source.Running || k.ready) {
			vms = append(vms, k.vm)
		}
	}
	slices.SortFunc(vms, func(a, b source.VM) int { return cmp.Compare(a.ID, b.ID) })
	return vms
}

// expect takes VMs that were listed for the first time off those that were asked for, and keeps the changes.
func (s *Scaler) expect(ctx context.Context, fresh map[string]bool, now time.Time) {
	if !s.mine {
		return
	}
	s.keepVMs(ctx)
	changed := false
	for _, r := range s.record.Requests {
		for _, id := range r.IDs {
			if fresh[id] && r.Left > 0 {
				r.Left--
				delete(fresh, id)
				changed = true
			}
		}
	}
	for _, r := range s.record.Requests {
		for id := range fresh {
			if r.Left == 0 {
				break
			}
			r.Left--
			delete(fresh, id)
			changed = true
		}
	}
	left := slices.DeleteFunc(slices.Clone(s.record.Requests), func(r *request) bool {
		isLost := now.Sub(r.At) > lostAfter
		if r.Answered && isLost && r.Left > 0 {
			s.log.Warn("VMs that the source has accepted do not appear", "count", r.Left, "request", r.ID)
		}
		return r.Answered && (r.Left == 0 || isLost)
	})
	if changed || len(left) != len(s.record.Requests) {
		s.record.Requests = left
		s.keep(ctx)
	}
}
