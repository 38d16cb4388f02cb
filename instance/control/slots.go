package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/plural"
)

// Slots counts the slots of the VMs that take builds: Total is Busy and Free together. All that shows slots counts them
// by Add.
type Slots struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
	Free  int `json:"free"`
	// Outside counts the builds that have none of these slots: on VMs that take no new builds, or that take fewer now.
	Outside int `json:"outside"`
}

// Add counts a VM in a state with this many slots and builds.
func (s *Slots) Add(state instance.State, capacity, builds int) {
	if state != instance.Ready && state != instance.Suspect {
		capacity = 0
	}
	busy := min(builds, capacity)
	s.Total += capacity
	s.Busy += busy
	s.Free += capacity - busy
	s.Outside += builds - busy
}

// Count counts the slots of the instances.
func (s *Status) Count() {
	s.Slots = Slots{}
	for i := range s.Instances {
		vm := &s.Instances[i]
		s.Slots.Add(instance.State(vm.State), vm.Capacity, len(vm.Builds))
	}
}

// Causes for which a build waits.
const (
	CauseNoVM  = "no_vm"          // no VM has its labels
	CauseOut   = "out_of_service" // of the VMs with its labels, none takes builds
	CauseFull  = "full"           // their slots are taken
	CauseMake  = "make"           // a VM is made for it, or could be
	CauseNext  = "next"           // the build is about to start, or others are ahead
	CauseLease = "lease"          // it is a lease, which waits for a slot
	CauseDeep  = "not_looked_at"  // it is too far back in the queue
)

// WhyWaits returns the cause for which a build with labels has no slot, and a text about it.
func (s *Status) WhyWaits(wanted map[string]string) (cause, text string) {
	var fitting Slots
	fit := 0
	states := map[string]int{} // of those that take no builds
	for i := range s.Instances {
		vm := &s.Instances[i]
		if !instance.HasLabels(vm.Labels, wanted) {
			continue
		}
		fit++
		before := fitting.Total
		if fitting.Add(instance.State(vm.State), vm.Capacity, len(vm.Builds)); fitting.Total == before {
			states[vm.State]++
		}
	}
	if fitting.Free == 0 {
		for i := range s.Groups {
			if g := &s.Groups[i]; g.Scales && instance.HasLabels(g.Labels, wanted) {
				return CauseMake, g.whyWaits()
			}
		}
	}
	switch {
	case fit == 0 && len(wanted) > 0:
		return CauseNoVM, "no VM has the label " + labels.Text(wanted)
	case fit == 0:
		return CauseNoVM, "there is no VM"
	case fitting.Free > 0:
		return CauseNext, "the build is about to start, or others are ahead"
	case fitting.Total > 0:
		return CauseFull, "all slots are taken"
	}
	var texts []string
	for _, state := range slices.Sorted(maps.Keys(states)) {
		texts = append(texts, fmt.Sprintf("%d %s", states[state], state))
	}
	return CauseOut, "no VM takes builds: " + strings.Join(texts, ", ")
}

// whyWaits says why a build that a VM of the group would do for has no slot.
func (g *VMGroup) whyWaits() string {
	switch {
	case g.Making > 0:
		return fmt.Sprintf("%s of the group %s being made", plural.Count(g.Making, "VM"), g.Name)
	case g.Missing != "" && g.Error != "":
		return fmt.Sprintf("group %s: %s: %s", g.Name, g.Missing, g.Error)
	case g.Missing != "":
		return fmt.Sprintf("group %s: %s", g.Name, g.Missing)
	default:
		return fmt.Sprintf("the group %s is about to make a VM", g.Name)
	}
}

// Backlog is the work that waits for a manager, and the size of its state.
type Backlog struct {
	// Waiting counts the builds and leases that wait, as Status.Waiting does, by why.
	Waiting map[Wait]int
	// Oldest is how long the first build of the queue has waited.
	Oldest time.Duration
	// State has the bytes of the state directory, by its directories; the files in it are in "other".
	State map[string]int64
	// LogBytes is the size of all logs, and LogsRemoved how many pieces of logs were removed because they were too old, or
	// all logs too large.
	LogBytes, LogsRemoved uint64
	// Servers are those of the Status.
	Servers []JobServer
	// Groups are those of the Status.
	Groups []VMGroup
	// Events counts the events of VMs, by kind.
	Events map[string]uint64
}

// Wait is why builds wait.
type Wait struct {
	Labels string // that they need, as text
	Cause  string
}
