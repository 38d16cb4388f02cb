package elastic

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Next returns the decision for a time.
func (p *Policy) Next(s State, now time.Time) Decision {
	d := &decider{policy: p, rule: p.ruleAt(now), state: &s, now: now, total: s.Making, making: s.Making * p.cfg.Capacity}
	d.Notes = make(map[string]string, len(s.VMs))
	d.Throttle = s.Throttle
	if p.changing {
		d.wake(now.Truncate(time.Minute).Add(time.Minute))
	}
	d.sort()
	d.count()
	d.choose()
	d.create()
	d.room()
	return d.Decision
}

// decider makes one decision.
type decider struct {
	Decision
	policy *Policy
	rule   *rule
	state  *State
	now    time.Time

	total  int   // VMs, with those that are being made or deleted
	making int   // slots of the VMs that are being made
	fixed  []*VM // VMs that take builds, and that are not drained
	choice []*VM // the others that take builds, the one that leaves first at the beginning
	used   int   // slots of these two
	ready  int   // slots in use or free of VMs that stay; those that leave are taken off
	leaves bool  // some VM leaves
	fresh  int   // of these, the slots of VMs that have not reached MaxAge
	free   int   // slots of VMs that stay
	asleep int   // free slots of VMs that are drained and could be undrained
}

// sort finds out which VMs the policy chooses from. Those that are of no use any more leave.
func (d *decider) sort() {
	ill := d.replaced()
	for i := range d.state.VMs {
		vm := &d.state.VMs[i]
		d.total++
		switch {
		case vm.Phase == Deleting:
			d.leaves = true
			d.note(vm, "is being deleted")
		case vm.Phase == Stopped:
			d.note(vm, "is stopped: start or delete it, it counts for max-instances")
		case vm.Protected && (vm.Closed || vm.Phase == Creating):
			d.note(vm, "is protected, and takes no builds")
		case vm.Failures >= maxFailures:
			d.leave(vm, fmt.Sprintf("did not become ready, %d times", vm.Failures), 0)
		case vm.Phase == Creating:
			d.making += d.capacity(vm)
			d.note(vm, "is being made")
		case vm == ill:
			d.leave(vm, fmt.Sprintf("has been ill for %v", d.now.Sub(vm.Ill).Round(time.Second)), 0)
		case vm.Closed:
			d.note(vm, "takes no builds")
		case d.policy.cfg.MaxUses > 0 && vm.Uses >= d.policy.cfg.MaxUses && !vm.Protected:
			d.leave(vm, fmt.Sprintf("has had max-uses %d", d.policy.cfg.MaxUses), 0)
		case vm.Protected:
			d.note(vm, "is protected")
			d.fixed = append(d.fixed, vm)
		default:
			d.choice = append(d.choice, vm)
		}
	}
	slices.SortFunc(d.choice, d.compare)
}

// replaced returns the VM that has been ill for the longest time, if that is too long and it is not in use; else nil.
// One leaves at a time: if all are ill, the reason may be another.
func (d *decider) replaced() (worst *VM) {
	for i := range d.state.VMs {
		vm := &d.state.VMs[i]
		switch {
		case vm.Phase == Deleting:
			return nil
		case vm.Phase != Running || vm.Ill.IsZero() || vm.Used > 0 || vm.Held || vm.Protected:
			continue
		}
		if until := vm.Ill.Add(d.policy.cfg.UnhealthyTime); d.now.Before(until) {
			d.wake(until)
		} else if worst == nil || vm.Ill.Before(worst.Ill) {
			worst = vm
		}
	}
	return worst
}

// compare orders the VMs that the policy chooses from, the one that leaves first at the beginning. A VM that is drained
// already stays the first, so that two decisions do not contradict each other.
func (d *decider) compare(a, b *VM) int {
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		default:
			return 1
		}
	}
	return cmp.Or(
		first(d.isOld(a), d.isOld(b)),
		first(a.Draining, b.Draining),
		cmp.Compare(a.Used, b.Used),
		a.IdleSince.Compare(b.IdleSince),
		a.Created.Compare(b.Created),
		cmp.Compare(a.ID, b.ID),
	)
}

// count counts the slots.
func (d *decider) count() {
	for _, vm := range slices.Concat(d.fixed, d.choice) {
		d.used += vm.Used
		d.ready += d.slots(vm)
		if !d.isOld(vm) || vm.Protected {
			d.fresh += d.slots(vm)
		}
	}
	d.Supply = d.ready + d.making
	d.Demand = d.used + d.state.Waiting + d.rule.idleSlots(d.used)
}

// choose says which of the VMs stay. A VM leaves if the others have slots enough without it. One that has reached
// MaxAge also leaves if no other can be made before: one at a time.
func (d *decider) choose() {
	isFull := d.making == 0 && d.total >= d.policy.cfg.MaxInstances
	for _, vm := range d.choice {
		slots, old := d.slots(vm), d.isOld(vm)
		switch {
		case d.ready-slots >= d.Demand && old:
			d.leave(vm, fmt.Sprintf("has reached max-age %v", d.policy.cfg.MaxAge), 0)
		case d.ready-slots >= d.Demand:
			d.leave(vm, "is not needed", d.rule.IdleTime)
		case old && isFull && !d.leaves:
			d.leave(vm, fmt.Sprintf("has reached max-age %v, and max-instances leaves no room for another before",
				d.policy.cfg.MaxAge), 0)
		default:
			d.stay(vm)
			continue
		}
		d.ready -= slots
		if d.asleep += slots - vm.Used; !old {
			d.fresh -= slots
		}
	}
	for _, vm := range d.fixed {
		d.free += d.slots(vm) - vm.Used
	}
}

// stay keeps a VM.
func (d *decider) stay(vm *VM) {
	if d.free += d.slots(vm) - vm.Used; vm.Draining {
		d.Undrain = append(d.Undrain, vm.ID)
	}
	switch {
	case d.isOld(vm):
		d.note(vm, "has reached max-age: it stays until another is ready")
	case vm.Used > 0:
		d.note(vm, "is in use")
	case d.state.Waiting > 0:
		d.note(vm, "is for builds that wait")
	default:
		d.note(vm, "is kept idle")
	}
	if age := d.policy.cfg.MaxAge; age > 0 && !d.isOld(vm) {
		d.wake(vm.Created.Add(age))
	}
}

// leave drains a VM, or deletes one that was drained and has not been in use for a time.
func (d *decider) leave(vm *VM, why string, idle time.Duration) {
	d.leaves = true
	until := vm.IdleSince.Add(idle)
	switch {
	case !vm.Draining:
		d.Drain = append(d.Drain, vm.ID)
		d.note(vm, why)
	case vm.Used > 0:
		d.note(vm, why+": it leaves when its builds have ended")
	case vm.Held:
		d.note(vm, why+": something else needs it")
	case vm.Protected:
		d.note(vm, why+": it is protected")
	case idle > 0 && d.now.Before(until):
		d.note(vm, why+": it leaves at "+until.Format(time.RFC3339))
		d.wake(until)
	default:
		d.note(vm, why)
		d.Delete = append(d.Delete, vm.ID)
	}
}

// create says how many VMs are made. Those that have reached MaxAge do not count, so that others take their place.
func (d *decider) create() {
	cfg := &d.policy.cfg
	missing := d.Demand - d.fresh - d.making
	d.Throttle = d.refill()
	if missing <= 0 {
		return
	}
	wanted := (missing + cfg.Capacity - 1) / cfg.Capacity
	n := wanted
	if room := max(cfg.MaxInstances-d.total, 0); n > room {
		n = room
		d.Missing = fmt.Sprintf("max-instances %d is reached", cfg.MaxInstances)
	}
	if n > 0 && d.now.Before(d.state.RetryAt) {
		n = 0
		d.Missing = "the source has failed: it is asked again at " + d.state.RetryAt.Format(time.RFC3339)
		d.wake(d.state.RetryAt)
	}
	if tokens := int(d.Throttle.Tokens); cfg.Rate > 0 && n > tokens {
		n = tokens
		d.Missing = fmt.Sprintf("the throttle allows %v VMs a second", cfg.Rate)
		d.wake(d.now.Add(time.Duration(math.Ceil((1 - d.Throttle.Tokens + float64(n)) / cfg.Rate * float64(time.Second)))))
	}
	if d.Create = n; cfg.Rate > 0 {
		d.Throttle.Tokens -= float64(n)
	}
}

// refill returns the throttle at this time.
func (d *decider) refill() Throttle {
	cfg, t := &d.policy.cfg, d.state.Throttle
	if cfg.Rate == 0 {
		return Throttle{}
	}
	tokens := float64(cfg.Burst)
	if !t.At.IsZero() { // a clock that was set back adds nothing
		tokens = min(tokens, t.Tokens+max(d.now.Sub(t.At).Seconds(), 0)*cfg.Rate)
	}
	return Throttle{Tokens: tokens, At: d.now}
}

// room says how many more builds may be asked for: as many as have a free slot, and, unless the rule is preemptive, as
// many as can have one.
func (d *decider) room() {
	room := d.free
	if !d.rule.isPreemptive() {
		room += d.asleep + d.making
		if !d.now.Before(d.state.RetryAt) {
			room += max(d.policy.cfg.MaxInstances-d.total, 0) * d.policy.cfg.Capacity
		}
	}
	d.Room = max(room-d.state.Waiting, 0)
}

// capacity returns how many builds a VM takes at once.
func (d *decider) capacity(vm *VM) int { return max(cmp.Or(vm.Capacity, d.policy.cfg.Capacity), 1) }

// slots returns the slots of a VM that are in use, and those that it may still give to builds.
func (d *decider) slots(vm *VM) int {
	free := max(d.capacity(vm)-vm.Used, 0)
	if most := d.policy.cfg.MaxUses; most > 0 {
		free = min(free, max(most-vm.Uses, 0))
	}
	return vm.Used + free
}

// isOld reports whether a VM has reached MaxAge.
func (d *decider) isOld(vm *VM) bool {
	age := d.policy.cfg.MaxAge
	return age > 0 && !vm.Created.IsZero() && !d.now.Before(vm.Created.Add(age))
}

func (d *decider) note(vm *VM, text string) { d.Notes[vm.ID] = text }

// wake asks for another decision at a time that is not later than that.
func (d *decider) wake(at time.Time) {
	if at.After(d.now) && (d.Wake.IsZero() || at.Before(d.Wake)) {
		d.Wake = at
	}
}

// ceil rounds up, but for the error of a multiplication.
func ceil(v float64) int { return int(math.Ceil(v - 1e-9)) }
