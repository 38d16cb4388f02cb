// Package fleetsim simulates a group of VMs whose number a policy decides: builds arrive, VMs are made, fail and
// vanish, and nothing takes time but these. It is the measure for a manager with real VMs, and it tests the policy:
// [Result].Faults has each broken promise.
package fleetsim

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/instance/elastic"
)

// Build is a build of a Load.
type Build struct {
	At, Takes time.Duration
}

// Load is the load and the faults of a group.
type Load struct {
	Builds []Build
	// Make and Delete are how long it takes to make and to delete a VM, and Spread how much longer it may take.
	Make, Delete, Spread time.Duration
	// FailMake is how often a request for VMs fails, Dud how often a VM never becomes ready, and Lose how often it
	// vanishes, at some time in its first hour. Each is a probability.
	FailMake, Dud, Lose float64
	// OnServer says that the builds are on a server, and are taken while Room allows.
	OnServer bool
	// Until is when the simulation ends.
	Until time.Duration
	Seed  uint64
}

// Result is the outcome of a simulation. Times count from its beginning.
type Result struct {
	Makespan time.Duration // when the last build ended
	Empty    time.Duration // since when there are no VMs; 0 if there are
	VMTime   time.Duration // of all VMs together
	Most     int           // VMs at once
	Made     int           // VMs in all
	Lost     int           // builds whose VM vanished; they run again
	Left     int           // builds that have not ended
	VMs      []elastic.VM  // at the end
	Free     int           // slots at the end
	Last     elastic.Decision
	Faults   []string
}

// Start is the time at which a simulation begins.
var Start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// failedAgain is how long a source that has failed is not asked again.
const failedAgain = 10 * time.Second

type vm struct {
	elastic.VM
	builds map[*build]bool
	gone   bool
	begun  time.Time
}

type build struct {
	Build
}

// event is something that happens at a time.
type event struct {
	at    time.Time
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].order, e[j].order)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type sim struct {
	cfg      elastic.Config
	policy   *elastic.Policy
	load     Load
	random   *rand.Rand
	now      time.Time
	events   events
	order    int
	vms      []*vm
	server   []*build // not taken yet
	waiting  []*build
	running  int
	retryAt  time.Time
	throttle elastic.Throttle
	result   Result
}

// Run simulates a load.
func Run(cfg elastic.Config, load Load) (Result, error) {
	policy, err := elastic.New(cfg)
	if err != nil {
		return Result{}, err
	}
	cfg.Capacity = max(cfg.Capacity, 1)
	s := &sim{cfg: cfg, policy: policy, load: load, now: Start, random: rand.New(rand.NewPCG(load.Seed, 1))}
	for _, b := range load.Builds {
		b := &build{Build: b}
		s.at(Start.Add(b.At), func() { s.arrive(b) })
	}
	s.at(Start, func() {})
	end := Start.Add(load.Until)
	for len(s.events) > 0 && !s.events[0].at.After(end) && len(s.result.Faults) == 0 {
		s.now = s.events[0].at
		for len(s.events) > 0 && s.events[0].at.Equal(s.now) {
			heap.Pop(&s.events).(event).do()
		}
		s.settle()
	}
	s.now = end
	for _, v := range s.vms {
		s.result.VMTime += end.Sub(v.begun)
		s.result.VMs = append(s.result.VMs, v.VM)
		if v.Phase == elastic.Running && !v.Draining {
			s.result.Free += s.free(v)
		}
	}
	s.result.Left = len(s.server) + len(s.waiting) + s.running
	return s.result, nil
}

func (s *sim) at(at time.Time, do func()) {
	s.order++
	heap.Push(&s.events, event{at, s.order, do})
}

func (s *sim) after(d time.Duration, do func()) { s.at(s.now.Add(d), do) }

func (s *sim) fault(format string, args ...any) {
	s.result.Faults = append(s.result.Faults, s.now.Sub(Start).String()+": "+fmt.Sprintf(format, args...))
}

func (s *sim) arrive(b *build) {
	if s.load.OnServer {
		s.server = append(s.server, b)
	} else {
		s.waiting = append(s.waiting, b)
	}
}

// settle carries decisions out until there is nothing to do at this time.
func (s *sim) settle() {
	for range 20 {
		s.place()
		if !s.step() {
			return
		}
	}
	s.fault("the policy does not come to rest: %+v", s.result.Last)
}

// place gives slots to builds that wait: each on the VM with the most free ones.
func (s *sim) place() {
	for len(s.waiting) > 0 {
		var best *vm
		for _, v := range s.vms {
			if v.Phase == elastic.Running && !v.Draining && s.free(v) > 0 && (best == nil || s.free(v) > s.free(best)) {
				best = v
			}
		}
		if best == nil {
			return
		}
		b := s.waiting[0]
		s.waiting = s.waiting[1:]
		best.builds[b] = true
		best.Used++
		best.Uses++
		s.running++
		s.after(b.Takes, func() { s.end(best, b) })
	}
}

func (s *sim) free(v *vm) int {
	free := s.cfg.Capacity - v.Used
	if s.cfg.MaxUses > 0 {
		free = min(free, s.cfg.MaxUses-v.Uses)
	}
	return free
}

func (s *sim) end(v *vm, b *build) {
	if v.gone || !v.builds[b] {
		return
	}
	delete(v.builds, b)
	v.Used--
	v.IdleSince = s.now
	s.running--
	s.result.Makespan = s.now.Sub(Start)
}

// step asks the policy, and does as it says. It reports whether there was something to do.
func (s *sim) step() bool {
	state := elastic.State{Waiting: len(s.waiting), RetryAt: s.retryAt, Throttle: s.throttle}
	byID := map[string]*vm{}
	for _, v := range s.vms {
		state.VMs = append(state.VMs, v.VM)
		byID[v.ID] = v
	}
	d := s.policy.Next(state, s.now)
	s.result.Last, s.throttle = d, d.Throttle
	if !d.Wake.IsZero() {
		s.at(d.Wake, func() {})
	}
	for _, id := range d.Drain {
		byID[id].Draining = true
	}
	for _, id := range d.Undrain {
		byID[id].Draining = false
	}
	for _, id := range d.Delete {
		s.delete(byID[id])
	}
	asked := min(d.Room, len(s.server))
	s.waiting = append(s.waiting, s.server[:asked]...)
	s.server = s.server[asked:]
	s.create(d)
	return d.Create+len(d.Drain)+len(d.Undrain)+len(d.Delete)+asked > 0
}

func (s *sim) create(d elastic.Decision) {
	if d.Create == 0 {
		return
	}
	if over := d.Supply + d.Create*s.cfg.Capacity - d.Demand; over >= s.cfg.Capacity && s.cfg.MaxAge == 0 {
		s.fault("%d VMs are made for a demand of %d slots, and there are %d", d.Create, d.Demand, d.Supply)
	}
	if s.random.Float64() < s.load.FailMake {
		s.retryAt = s.now.Add(failedAgain)
		return
	}
	for range d.Create {
		s.result.Made++
		v := &vm{builds: map[*build]bool{}, begun: s.now}
		v.ID, v.Created = strconv.Itoa(s.result.Made), s.now
		s.vms = append(s.vms, v)
		took := s.load.Make + s.spread()
		switch lot := s.random.Float64(); {
		case lot < s.load.Dud:
			s.after(took, func() { v.Failures = 3 })
			continue
		case lot < s.load.Dud+s.load.Lose:
			s.after(time.Duration(s.random.Float64()*float64(time.Hour)), func() { s.vanish(v) })
		}
		s.after(took, func() {
			if !v.gone {
				v.Phase, v.IdleSince = elastic.Running, s.now
			}
		})
	}
	s.result.Most = max(s.result.Most, len(s.vms))
	if len(s.vms) > s.cfg.MaxInstances {
		s.fault("%d VMs", len(s.vms))
	}
}

func (s *sim) spread() time.Duration {
	return time.Duration(s.random.Float64() * float64(s.load.Spread))
}

func (s *sim) delete(v *vm) {
	if v.Used > 0 || !v.Draining {
		s.fault("VM %s with %d builds is deleted, draining %v", v.ID, v.Used, v.Draining)
	}
	v.Phase = elastic.Deleting
	s.after(s.load.Delete+s.spread(), func() { s.vanish(v) })
}

// vanish ends a VM. Its builds begin again.
func (s *sim) vanish(v *vm) {
	if v.gone {
		return
	}
	v.gone = true
	s.vms = slices.DeleteFunc(s.vms, func(other *vm) bool { return other == v })
	s.result.VMTime += s.now.Sub(v.begun)
	var lost []*build
	for b := range v.builds {
		lost = append(lost, b)
	}
	slices.SortFunc(lost, func(a, b *build) int { return cmp.Compare(a.At, b.At) })
	s.running -= len(lost)
	s.result.Lost += len(lost)
	s.waiting = append(lost, s.waiting...)
	if s.result.Empty = 0; len(s.vms) == 0 {
		s.result.Empty = s.now.Sub(Start)
	}
}
