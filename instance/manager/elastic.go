package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/instance/manager/scaler"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
)

// VMGroup is a group of VMs that come and go.
type VMGroup struct {
	scaler.Config
	// Instances returns the instances for VMs that the source lists. Their labels include those of Config. Required.
	Instances func(ctx context.Context, vms []source.VM) ([]instance.Instance, error)
}

// elasticGroups are the groups of a manager whose VMs come and go. Without groups all calls do nothing.
type elasticGroups struct {
	all  []*elasticGroup
	stop func() // no more VMs come; nil without groups

	looks     sync.Mutex // held while the managers are asked; guards the following
	look      fleetLook
	lookUntil time.Time

	mu       sync.Mutex // guards the following
	promised int        // jobs that doors may take, since the last decision
	decided  time.Time
}

// makeGroups makes the groups of the configuration.
func (m *Manager) makeGroups() error {
	for _, cfg := range m.cfg.VMGroups {
		cfg.Logger = m.cfg.Logger
		g := &elasticGroup{
			m: m, cfg: cfg, used: map[string]usedVM{}, drained: map[string]bool{}, reaching: map[string]*reaching{},
		}
		var err error
		if g.scaler, err = scaler.New(cfg.Config, g); err != nil {
			return fmt.Errorf("the group of VMs %s: %w", cfg.Name, err)
		}
		m.groups.all = append(m.groups.all, g)
	}
	if len(m.groups.all) > 0 {
		m.groups.stop = m.cfg.Group.Expect()
	}
	return nil
}

// restoreGroups restores the VMs of the groups, so that builds on them can be resumed.
func (m *Manager) restoreGroups(ctx context.Context) error {
	for _, g := range m.groups.all {
		if err := g.scaler.Restore(ctx); err != nil { // builds on the VMs would be lost
			return fmt.Errorf("the group of VMs %s: %w", g.cfg.Name, err)
		}
	}
	return nil
}

// runGroups scales the groups until no more builds are taken.
func (m *Manager) runGroups() {
	for _, g := range m.groups.all {
		m.wg.Go(g.run)
	}
}

// run scales the group in each term of this manager.
func (g *elasticGroup) run() {
	for g.m.takes.Err() == nil {
		term, stop, err := g.m.fleet.Term(g.m.takes)
		if err != nil {
			return
		}
		g.scaler.Run(term)
		g.revision = 0
		stop()
	}
}

// holdsBack reports whether a VM takes no builds because of its group. draining is held.
func (e *elasticGroups) holdsBack(id string) bool {
	for _, g := range e.all {
		g.mu.Lock()
		held := g.holdsBackLocked(id)
		g.mu.Unlock()
		if held {
			return true
		}
	}
	return false
}

// labels returns those of the groups: a VM with them can be made.
func (e *elasticGroups) labels() (all []map[string]string) {
	for _, g := range e.all {
		all = append(all, g.cfg.Labels)
	}
	return all
}

// fits reports whether a VM with labels can be made.
func (e *elasticGroups) fits(labels map[string]string) bool {
	return slices.ContainsFunc(e.labels(), func(of map[string]string) bool { return instance.HasLabels(of, labels) })
}

// promise reports whether a door may take one more job, whose VM needs labels, although there is no slot: since a VM
// can be made.
func (e *elasticGroups) promise(labels map[string]string) bool {
	room, decided := 0, time.Time{}
	for _, g := range e.all {
		if !instance.HasLabels(g.cfg.Labels, labels) {
			continue
		}
		s := g.scaler.Status()
		if room += s.Room; s.At.After(decided) {
			decided = s.At
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if decided.After(e.decided) { // it knows the jobs before
		e.promised, e.decided = 0, decided
	}
	if room <= e.promised {
		return false
	}
	e.promised++
	return true
}

// vmNote is the group of a VM, and why the VM is there or leaves.
type vmNote struct{ group, note string }

// stats returns how the groups stand, and the note of each of their VMs by its ID.
func (e *elasticGroups) stats() (all []control.VMGroup, notes map[string]vmNote) {
	notes = map[string]vmNote{}
	for _, g := range e.all {
		s := g.scaler.Status()
		all = append(all, control.VMGroup{
			Name: s.Name, Labels: g.cfg.Labels, Source: s.Source,
			Scales: s.Scales || s.At.IsZero(), // before the first list it is not known
			Ready:  s.Ready, Making: s.Making, Leaving: s.Leaving,
			Other: s.Other, Max: s.Max, Wanted: s.Demand, Supply: s.Supply, Waiting: s.Waiting, Missing: s.Missing,
			Error: s.Err, Failures: s.Failures,
		})
		for id, note := range s.Notes {
			notes[id] = vmNote{g.cfg.Name, note}
		}
		g.mu.Lock()
		for id, r := range g.reaching {
			note := vmNote{g.cfg.Name, "is not reached yet"}
			if r.err != nil {
				note.note += ": " + r.err.Error()
			}
			notes[id] = note
		}
		g.mu.Unlock()
	}
	return all, notes
}

// errRoom ends the wait for a slot: a VM can be made for a job.
var errRoom = errors.New("a VM can be made")

// roomPause is the time between two looks for a VM that can be made.
const roomPause = time.Second / 4

// reserveForDoor waits for a slot for a door, or until a VM can be made for the next job: then there is no slot yet,
// and its build waits for one.
func (m *Manager) reserveForDoor(
	ctx context.Context, party string, labels map[string]string,
) (jobdoor.Room, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel(nil)
	if len(m.groups.all) > 0 {
		looks.Go(func() {
			for pause.For(waiting, roomPause) == nil {
				if m.groups.promise(labels) {
					cancel(errRoom)
				}
			}
		})
	}
	r, err := m.cfg.Group.Reserve(waiting, party, labels)
	switch {
	case err == nil:
		return &room{Reservation: r, of: &m.rooms}, nil
	case ctx.Err() == nil && errors.Is(context.Cause(waiting), errRoom):
		return noRoom{}, nil
	default:
		return nil, err
	}
}

// noRoom is the slot of a VM that is not made yet.
type noRoom struct{}

// Release implements jobdoor.Room.
func (noRoom) Release() {}

// Soften implements jobdoor.Room: nobody waits for a slot that is not there.
func (noRoom) Soften() <-chan struct{} { return nil }

// fleetLook is how the VMs of all managers are used.
type fleetLook struct {
	vms     map[string]control.VM
	waiting []map[string]string // the labels of builds and leases without a slot
}

// lookTime is how long a look is used again, at least. It takes at most one part of lookShare of the time.
const lookTime, lookShare = 500 * time.Millisecond, 20

// lookAll looks at all VMs and at the queue. The groups share a look.
func (m *Manager) lookAll(ctx context.Context) (fleetLook, error) {
	m.groups.looks.Lock()
	defer m.groups.looks.Unlock()
	began := time.Now()
	if began.Before(m.groups.lookUntil) {
		return m.groups.look, nil
	}
	status, list, err := m.statusAndQueue(ctx, maxLookedAt)
	if err != nil {
		return fleetLook{}, err
	}
	look := fleetLook{vms: map[string]control.VM{}}
	placed := map[string]bool{} // builds that have a slot, and are in the queue as long as their job has not begun
	for _, vm := range status.Instances {
		if vm.State == string(instance.Elsewhere) {
			continue
		}
		look.vms[vm.ID] = vm
		for _, b := range vm.Builds {
			placed[b.ID] = true
		}
	}
	for _, b := range list.GetBuilds() {
		if !placed[b.GetId()] {
			look.waiting = append(look.waiting, b.GetLabels())
		}
	}
	for id, labels := range m.cfg.Group.WaitingFor() {
		if strings.HasPrefix(id, leaseName) {
			look.waiting = append(look.waiting, labels)
		}
	}
	m.groups.look, m.groups.lookUntil = look, time.Now().Add(max(lookTime, time.Since(began)*lookShare))
	return look, nil
}

// maxStrangersLooked is how many requests in a row without a build that runs end the search for builds that run.
const maxStrangersLooked = 1000

// inUse returns the VMs where a build may run, or that have a lease, by the state. A manager may not have resumed them
// yet.
func (m *Manager) inUse(ctx context.Context) (map[string]bool, error) {
	busy := map[string]bool{}
	leases, err := m.keptLeases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		busy[l.Instance] = true
	}
	seq := uint64(1)
	for strangers := 0; strangers < maxStrangersLooked; strangers++ {
		r, err := m.store.Queued(ctx, seq)
		if err != nil || r == nil {
			return busy, err
		}
		seq = r.Seq + 1
		rec, err := m.store.Record(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		if rec != nil && rec.Phase == state.PhaseRunning {
			busy[rec.Instance] = true
			strangers = 0
		}
	}
	return busy, nil
}
