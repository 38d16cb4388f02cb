package elastic_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic"
)

// now is the time of the tests: a Monday.
var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func policy(t *testing.T, cfg elastic.Config) *elastic.Policy {
	t.Helper()
	p, err := elastic.New(cfg)
	require.NoError(t, err)
	return p
}

// vms returns n idle VMs. edit may change each.
func vms(n int, edit ...func(*elastic.VM)) (all []elastic.VM) {
	for i := range n {
		vm := elastic.VM{
			ID: fmt.Sprintf("vm-%d", i+1), Phase: elastic.Running, Created: now.Add(-time.Hour), IdleSince: now.Add(-time.Hour),
		}
		for _, change := range edit {
			change(&vm)
		}
		all = append(all, vm)
	}
	return all
}

func used(n int) func(*elastic.VM) {
	return func(vm *elastic.VM) { vm.Used, vm.Uses = n, n }
}

// carryOut does what a decision says, at once.
func carryOut(s *elastic.State, d elastic.Decision) {
	in := func(ids []string, id string) bool {
		for _, other := range ids {
			if other == id {
				return true
			}
		}
		return false
	}
	left := s.VMs[:0]
	for _, vm := range s.VMs {
		if in(d.Delete, vm.ID) {
			continue
		}
		vm.Draining = (vm.Draining || in(d.Drain, vm.ID)) && !in(d.Undrain, vm.ID)
		left = append(left, vm)
	}
	s.VMs, s.Throttle = left, d.Throttle
	s.Making += d.Create
}

// settle carries decisions out until there are no more.
func settle(t *testing.T, p *elastic.Policy, s *elastic.State, at time.Time) elastic.Decision {
	t.Helper()
	for range 10 {
		d := p.Next(*s, at)
		if d.Create+len(d.Drain)+len(d.Undrain)+len(d.Delete) == 0 {
			return d
		}
		carryOut(s, d)
	}
	require.Fail(t, "the policy does not come to rest")
	return elastic.Decision{}
}

// no is Rule.Preemptive.
func no() *bool { return new(bool) }

// Complaint (gitlab-runner 37526, 37643): with idle 0 and a capacity of more than 1 some VMs stay for ever.
func TestIdleZeroReachesZeroWithACapacityOfMoreThanOne(t *testing.T) {
	p := policy(t, elastic.Config{Capacity: 3, MaxInstances: 10, Rules: []elastic.Rule{{IdleTime: time.Minute}}})
	s := elastic.State{VMs: vms(4, used(1))}
	settle(t, p, &s, now)
	require.Equal(t, 2, serving(s), "4 builds fit on 2 VMs, so that the others become idle")
	require.Len(t, s.VMs, 4, "with builds on them they stay")
	for i := range s.VMs {
		s.VMs[i].Used, s.VMs[i].IdleSince = 0, now
	}
	d := settle(t, p, &s, now)
	require.Len(t, s.VMs, 4)
	require.Equal(t, now.Add(time.Minute), d.Wake)
	settle(t, p, &s, d.Wake)
	require.Empty(t, s.VMs)
}

func serving(s elastic.State) (n int) {
	for _, vm := range s.VMs {
		if !vm.Draining {
			n++
		}
	}
	return n
}

// Complaint (gitlab-runner 37673): more VMs, or less, than idle-count are idle.
func TestIdleCountIsMetExactly(t *testing.T) {
	for capacity := 1; capacity <= 4; capacity++ {
		for idle := range 9 {
			for busy := range 5 {
				p := policy(t, elastic.Config{
					Capacity: capacity, MaxInstances: 50, Rules: []elastic.Rule{{IdleCount: idle, IdleTime: time.Minute}},
				})
				for _, n := range []int{5, 20} {
					s := elastic.State{VMs: vms(n)}
					for i := range busy {
						s.VMs[i].Used = 1
					}
					settle(t, p, &s, now)
					want := (busy + idle + capacity - 1) / capacity
					require.Equal(t, want, serving(s)+s.Making, "capacity %d, idle-count %d, %d builds", capacity, idle, busy)
				}
			}
		}
	}
}

// Complaint (taskscaler 20, 49): while VMs are being made, more and more are asked for.
func TestVMsThatAreBeingMadeCountWithTheirWholeCapacity(t *testing.T) {
	p := policy(t, elastic.Config{Capacity: 4, MaxInstances: 100})
	s := elastic.State{Waiting: 10}
	d := p.Next(s, now)
	require.Equal(t, 3, d.Create)
	carryOut(&s, d)
	require.Zero(t, p.Next(s, now.Add(time.Second)).Create, "asked for, and not listed yet")
	s.VMs, s.Making = vms(3, func(vm *elastic.VM) { vm.Phase = elastic.Creating }), 0
	require.Zero(t, p.Next(s, now.Add(time.Minute)).Create, "listed")
	s.Waiting = 13
	require.Equal(t, 1, p.Next(s, now.Add(time.Minute)).Create)
}

// Complaint (gitlab-runner 30953, 39811, 39380): a VM with builds on it is deleted, as after a restart.
func TestAVMInUseIsNeverDeleted(t *testing.T) {
	cfg := elastic.Config{MaxInstances: 5, MaxUses: 2, MaxAge: time.Minute, Rules: []elastic.Rule{{IdleTime: 1}}}
	p := policy(t, cfg)
	for name, edit := range map[string]func(*elastic.VM){
		"surplus":           func(*elastic.VM) {},
		"old":               func(vm *elastic.VM) { vm.Created = now.Add(-time.Hour) },
		"used up":           func(vm *elastic.VM) { vm.Uses = 2 },
		"idle time unknown": func(vm *elastic.VM) { vm.IdleSince = time.Time{} },
		"failed":            func(vm *elastic.VM) { vm.Failures = 7 },
		"being made":        func(vm *elastic.VM) { vm.Phase, vm.Failures = elastic.Creating, 7 },
	} {
		s := elastic.State{VMs: vms(3, used(1), edit)}
		settle(t, p, &s, now)
		require.Len(t, s.VMs, 3, name)
		s = elastic.State{VMs: vms(3, edit, func(vm *elastic.VM) { vm.Held = true })}
		settle(t, p, &s, now)
		require.Len(t, s.VMs, 3, "held, %s", name)
	}
}

// A VM that takes builds may get one between the decision and its end. So it is drained before.
func TestAVMIsDrainedBeforeItIsDeleted(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 5, MaxUses: 1, Rules: []elastic.Rule{{IdleTime: 1}}})
	s := elastic.State{VMs: vms(2)}
	s.VMs[1].Uses = 1
	d := p.Next(s, now)
	require.ElementsMatch(t, []string{"vm-1", "vm-2"}, d.Drain)
	require.Empty(t, d.Delete)
	carryOut(&s, d)
	s.VMs[0].Used = 1 // it got a build before it was drained
	require.Equal(t, []string{"vm-2"}, p.Next(s, now).Delete)
}

// Complaint (gitlab-runner 38326): with preemptive off and no idle VMs no job is asked for.
func TestWithoutPreemptiveJobsAreAskedForIfAVMCanBeMade(t *testing.T) {
	cfg := elastic.Config{Capacity: 2, MaxInstances: 3, Rules: []elastic.Rule{{Preemptive: no()}}}
	p := policy(t, cfg)
	require.Equal(t, 6, p.Next(elastic.State{}, now).Room)
	require.Equal(t, 2, p.Next(elastic.State{Waiting: 4}, now).Room)
	drained := vms(3, func(vm *elastic.VM) { vm.Draining = true })
	require.Equal(t, 5, p.Next(elastic.State{VMs: drained, Waiting: 1}, now).Room)
	s := elastic.State{RetryAt: now.Add(time.Minute)}
	require.Zero(t, p.Next(s, now).Room, "none can be made now")
	require.Equal(t, 6, p.Next(s, now.Add(time.Minute)).Room)
	cfg.Rules = []elastic.Rule{{IdleCount: 2}}
	s = elastic.State{VMs: vms(1)}
	require.Equal(t, 2, policy(t, cfg).Next(s, now).Room, "on by default with an idle-count")
	s.VMs[0].Used = 1
	require.Equal(t, 1, policy(t, cfg).Next(s, now).Room)
	require.Zero(t, policy(t, cfg).Next(elastic.State{}, now).Room)
}

// Complaint: a source that fails, as for a quota, is asked again at once, for ever.
func TestAFailedSourceIsNotAskedBeforeItsTime(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 5})
	s := elastic.State{Waiting: 3, RetryAt: now.Add(time.Minute)}
	d := p.Next(s, now)
	require.Zero(t, d.Create)
	require.Equal(t, s.RetryAt, d.Wake)
	require.Equal(t, "the source has failed: it is asked again at 2026-03-02T12:01:00Z", d.Missing)
	require.Equal(t, 3, p.Next(s, s.RetryAt).Create)
}

// Complaint (garm 96): a VM that was deleted by hand counts for ever, or is not made again.
func TestAVMThatIsGoneIsReplaced(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 5, Rules: []elastic.Rule{{IdleCount: 2}}})
	s := elastic.State{VMs: vms(2)}
	require.Zero(t, p.Next(s, now).Create)
	s.VMs = s.VMs[:1]
	require.Equal(t, 1, p.Next(s, now).Create)
}

// A VM that is half made at a crash never answers.
func TestAVMThatDoesNotBecomeReadyIsDeletedAndReplaced(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 2, Rules: []elastic.Rule{{IdleCount: 1}}})
	s := elastic.State{VMs: vms(1, func(vm *elastic.VM) { vm.Phase, vm.Failures = elastic.Creating, 2 })}
	require.Zero(t, p.Next(s, now).Create)
	s.VMs[0].Failures = 3
	d := p.Next(s, now)
	require.Equal(t, 1, d.Create)
	require.Equal(t, []string{"vm-1"}, d.Drain)
	require.Equal(t, "did not become ready, 3 times", d.Notes["vm-1"])
	carryOut(&s, d)
	require.Equal(t, []string{"vm-1"}, p.Next(s, now).Delete)
}

// A clock that is set back or forth deletes nothing that is in use, makes no more VMs than are needed, and gives no
// tokens to the throttle twice.
func TestAClockThatJumpsDoesNoHarm(t *testing.T) {
	p := policy(t, elastic.Config{
		MaxInstances: 10, MaxAge: time.Hour, Rate: 1, Burst: 2,
		Rules: []elastic.Rule{{IdleCount: 1, IdleTime: time.Minute}},
	})
	for _, jump := range []time.Duration{-1000 * time.Hour, -time.Second, time.Hour, 1000 * time.Hour} {
		s := elastic.State{VMs: vms(3, used(1)), Throttle: elastic.Throttle{At: now}}
		s.VMs = append(s.VMs, vms(5)[3:]...)
		s.VMs[4].Draining = true
		for i := range s.VMs {
			s.VMs[i].Created = now
		}
		settle(t, p, &s, now.Add(jump))
		busy := 0
		for _, vm := range s.VMs {
			busy += vm.Used
		}
		require.Equal(t, 3, busy)
		require.LessOrEqual(t, s.Making, 2, "the throttle")
		if jump < 0 {
			require.Zero(t, s.Making)
			require.Zero(t, s.Throttle.Tokens)
		}
	}
}

func TestTheThrottleBoundsHowManyAreMade(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 100, Rate: 0.5, Burst: 3})
	s := elastic.State{Waiting: 10}
	d := p.Next(s, now)
	require.Equal(t, 3, d.Create)
	require.Equal(t, "the throttle allows 0.5 VMs a second", d.Missing)
	at := now
	for made := 3; made < 10; made++ {
		carryOut(&s, d)
		at = at.Add(2 * time.Second)
		require.Equal(t, at, d.Wake)
		require.Zero(t, p.Next(s, at.Add(-time.Millisecond)).Create)
		d = p.Next(s, at)
		require.Equal(t, 1, d.Create)
	}
	require.Empty(t, d.Missing)
}

func TestAnOldVMIsReplacedBeforeItLeaves(t *testing.T) {
	cfg := elastic.Config{MaxInstances: 4, MaxAge: time.Hour, Rules: []elastic.Rule{{IdleCount: 2}}}
	p := policy(t, cfg)
	s := elastic.State{VMs: vms(2)}
	d := p.Next(s, now)
	require.Equal(t, 2, d.Create)
	require.Empty(t, d.Drain)
	s.VMs = append(s.VMs, vms(3, func(vm *elastic.VM) { vm.Created = now })[2])
	s.Making = 1
	require.Equal(t, []string{"vm-1"}, p.Next(s, now).Drain, "one is ready, so one leaves")

	// Without room for another, one leaves before it is replaced, and then the next one.
	cfg.MaxInstances = 2
	p, s = policy(t, cfg), elastic.State{VMs: vms(2)}
	for i := range 2 {
		d = p.Next(s, now)
		require.Len(t, d.Drain, 1)
		require.Zero(t, d.Create)
		carryOut(&s, d)
		d = p.Next(s, now)
		require.Empty(t, d.Drain)
		require.Len(t, d.Delete, 1)
		carryOut(&s, d)
		d = p.Next(s, now)
		require.Equal(t, 1, d.Create)
		require.Empty(t, d.Drain, "while one is being made")
		s.VMs = append(s.VMs, elastic.VM{ID: fmt.Sprint("new-", i), Phase: elastic.Running, Created: now})
	}
	settle(t, p, &s, now)
	require.Len(t, s.VMs, 2)
}

func TestAVMThatIsUsedUpLeavesAndCountsWithTheUsesItHasLeft(t *testing.T) {
	p := policy(t, elastic.Config{Capacity: 4, MaxUses: 5, MaxInstances: 10})
	s := elastic.State{VMs: vms(1, func(vm *elastic.VM) { vm.Used, vm.Uses = 2, 4 })}
	s.Waiting = 1
	require.Zero(t, p.Next(s, now).Create)
	s.Waiting = 2
	require.Equal(t, 1, p.Next(s, now).Create)
	s = elastic.State{VMs: vms(1, func(vm *elastic.VM) { vm.Used, vm.Uses = 1, 5 })}
	d := p.Next(s, now)
	require.Zero(t, d.Create, "its builds have slots")
	require.Equal(t, []string{"vm-1"}, d.Drain)
}

func TestTheScaleFactorKeepsSlotsForEachInUse(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 100, Rules: []elastic.Rule{
		{IdleCount: 2, ScaleFactor: 0.1, ScaleFactorLimit: 4},
	}})
	for busy, idle := range map[int]int{0: 2, 10: 2, 20: 2, 30: 3, 31: 4, 80: 4} {
		require.Equal(t, busy+idle, p.Next(elastic.State{VMs: vms(busy, used(1))}, now).Demand, "%d in use", busy)
	}
}

func TestWhatTheManagerAndOperatorsHoldStays(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 10, MaxUses: 5})
	for name, edit := range map[string]func(*elastic.VM){
		"protected":            func(vm *elastic.VM) { vm.Protected = true },
		"protected, used up":   func(vm *elastic.VM) { vm.Protected, vm.Uses = true, 5 },
		"protected, half made": func(vm *elastic.VM) { vm.Protected, vm.Phase, vm.Failures = true, elastic.Creating, 3 },
		"closed":               func(vm *elastic.VM) { vm.Closed = true },
		"stopped":              func(vm *elastic.VM) { vm.Phase = elastic.Stopped },
		"deleting":             func(vm *elastic.VM) { vm.Phase = elastic.Deleting },
	} {
		s := elastic.State{VMs: vms(2, edit)}
		settle(t, p, &s, now)
		require.Len(t, s.VMs, 2, name)
		s.Waiting = 20
		d := p.Next(s, now)
		require.Equal(t, 8, d.Create, "%s: they count for max-instances", name)
		require.Equal(t, "max-instances 10 is reached", d.Missing)
		require.Len(t, d.Notes, 2)
	}
}

// A VM that is drained gets builds again before another one is made.
func TestDemandIsMetByVMsThatAreDrainedFirst(t *testing.T) {
	p := policy(t, elastic.Config{Capacity: 2, MaxInstances: 10})
	s := elastic.State{VMs: vms(2, func(vm *elastic.VM) { vm.IdleSince = now })}
	settle(t, p, &s, now)
	require.Zero(t, serving(s))
	s.Waiting = 5
	d := p.Next(s, now)
	require.ElementsMatch(t, []string{"vm-1", "vm-2"}, d.Undrain)
	require.Equal(t, 1, d.Create)
}
