package manager

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// drained is a VM that an operator takes out. It is kept, so that a restarted manager takes it out too.
type drained struct {
	Instance string    `json:"instance"`
	Note     string    `json:"note,omitempty"`
	Until    time.Time `json:"until,omitzero"`

	revision uint64      // of its key
	over     bool        // it was undrained; kept, so that an earlier drain that is noted late has no effect
	timer    *time.Timer // ends it; nil if nothing does
}

const drainPrefix = "drain."

// drainKey returns the key of a VM in the bucket, which does not take all characters of an ID.
func drainKey(id string) string {
	return drainPrefix + base64.RawURLEncoding.EncodeToString([]byte(id))
}

// drain takes a VM out for an operator, for some time unless that is zero.
func (m *Manager) drain(ctx context.Context, who, id, note string, limit time.Duration) error {
	d := &drained{Instance: id, Note: note}
	if limit > 0 {
		d.Until = time.Now().Add(limit)
	}
	var err error
	if d.revision, err = m.store.Write(ctx, m.store.Fleet, drainKey(id), natscall.Encode(d)); err != nil {
		return fmt.Errorf("keep the drain of %s: %w", id, err)
	}
	m.cfg.Logger.Info("instance is drained", "instance", id, "note", note, "for", limit)
	m.setDrained(d) //nolint:contextcheck // its timer outlives ctx
	m.note(ctx, state.Action{Who: who, Action: "drain", Subject: id, Note: note})
	return nil
}

// undrain lets a VM take builds again, for an operator.
func (m *Manager) undrain(ctx context.Context, who, id string, options ...jetstream.PublishOpt) error {
	d := &drained{Instance: id, over: true}
	var err error
	if d.revision, err = m.store.Purge(ctx, m.store.Fleet, drainKey(id), options...); err != nil {
		return fmt.Errorf("forget the drain of %s: %w", id, err)
	}
	m.cfg.Logger.Info("instance is no longer drained", "instance", id)
	m.setDrained(d) //nolint:contextcheck // it has no timer
	m.note(ctx, state.Action{Who: who, Action: "undrain", Subject: id})
	return nil
}

// forgetDrain forgets the drains and undrains of a VM that is gone and does not come back.
func (m *Manager) forgetDrain(id string) {
	m.mu.Lock()
	last := m.drains[id]
	m.mu.Unlock()
	if last == nil {
		return
	}
	d := &drained{Instance: id, over: true}
	err := m.store.Persist(m.takes, func(ctx context.Context) (err error) {
		d.revision, err = m.store.Purge(ctx, m.store.Fleet, drainKey(id), jetstream.WithMsgTTL(purgedKeep),
			jetstream.WithExpectLastSequencePerSubject(last.revision))
		return err
	})
	switch {
	case err == nil:
		m.setDrained(d)
	case natscall.Changed(err), m.takes.Err() != nil: // another manager was faster
	default:
		m.cfg.Logger.Warn("cannot forget the drain of a VM that is gone", "instance", id, "error", err)
	}
}

// drainedNow returns the VMs that are drained, also those that are out of the inventory.
func (m *Manager) drainedNow() (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, d := range m.drains {
		if !d.over {
			ids = append(ids, id)
		}
	}
	return ids
}

// setDrained takes a VM out or lets it take builds again, unless a later change is known. Changes of this manager and
// of others may be noted in another order than they were kept in. It also counts for a VM that comes into the inventory
// later.
func (m *Manager) setDrained(d *drained) {
	m.draining.Lock()
	defer m.draining.Unlock()
	m.mu.Lock()
	before := m.drains[d.Instance]
	if before != nil && before.revision >= d.revision {
		m.mu.Unlock()
		return
	}
	if before != nil && before.timer != nil {
		before.timer.Stop()
	}
	switch {
	case d.over:
		d.timer = time.AfterFunc(purgedKeep, func() { m.forgetOver(d) })
	case !d.Until.IsZero():
		d.timer = time.AfterFunc(time.Until(d.Until), func() { m.spawn(func() { m.endDrain(d) }) })
	}
	m.drains[d.Instance] = d
	m.mu.Unlock()
	if d.over {
		m.letIn(d.Instance)
		return
	}
	_ = m.cfg.Group.Drain(d.Instance) // as above
	m.fleet.drained()
}

// forgetOver forgets that a VM was undrained, if it is not in the set. All earlier drains have been noted.
func (m *Manager) forgetOver(d *drained) {
	isIt := func(in instance.Instance) bool { return in.ID == d.Instance }
	if slices.ContainsFunc(m.cfg.Group.Instances(), isIt) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drains[d.Instance] == d {
		delete(m.drains, d.Instance)
	}
}

// endDrain ends a drain whose time has passed.
func (m *Manager) endDrain(d *drained) {
	err := m.store.Persist(m.takes, func(ctx context.Context) error {
		return m.undrain(ctx, "the end of the drain's time", d.Instance,
			jetstream.WithExpectLastSequencePerSubject(d.revision))
	})
	switch {
	case err == nil, m.takes.Err() != nil:
	case natscall.Changed(err): // another manager was faster, or an operator
	default:
		m.cfg.Logger.Error("cannot undrain", "instance", d.Instance, "error", err)
	}
}

// restoreDrains takes out the VMs that were drained before.
func (m *Manager) restoreDrains(ctx context.Context) error {
	drains, err := natscall.Entries(ctx, m.store.Fleet, drainPrefix+"*")
	for _, entry := range drains {
		err = errors.Join(err, m.noteDrain(entry)) //nolint:contextcheck // its timer outlives ctx
	}
	return err
}

// noteDrain repeats a drain or undrain that the store has.
func (m *Manager) noteDrain(entry jetstream.KeyValueEntry) error {
	id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(entry.Key(), drainPrefix))
	d := &drained{revision: entry.Revision(), over: entry.Operation() != jetstream.KeyValuePut}
	if err == nil && !d.over {
		err = json.Unmarshal(entry.Value(), d)
	}
	if err != nil {
		return fmt.Errorf("read the drain of %.160q: %w", id, err)
	}
	d.Instance = string(id)
	m.setDrained(d)
	return nil
}

// status returns the status of the fleet. In a cluster that is the VMs of all managers, and the rest is this one's.
func (m *Manager) status(ctx context.Context) control.Status {
	s, _, _ := m.statusAndQueue(ctx, 0) // without the queue if that cannot be read
	return s
}

// statusAndQueue is status, with the queue and at most so many of its builds.
func (m *Manager) statusAndQueue(ctx context.Context, limit int) (control.Status, *pb.ListResponse, error) {
	s := m.ownStatus()
	list, err := m.list(ctx, &pb.ListRequest{Phase: pb.Build_queued}, limit)
	s.Waiting += int(list.GetQueued()) // there are not that many
	others := map[string]control.VM{}
	for _, a := range m.fleet.ask(ctx, peerQuestion{Status: true}) {
		s.Waiting += a.Waiting
		for _, vm := range a.VMs {
			others[vm.ID] = vm
		}
	}
	for i, vm := range s.Instances {
		if theirs, ok := others[vm.ID]; ok && vm.State == string(instance.Elsewhere) {
			s.Instances[i] = theirs
		}
	}
	has := func(states ...instance.State) bool {
		return slices.ContainsFunc(s.Instances, func(vm control.VM) bool {
			return slices.Contains(states, instance.State(vm.State))
		})
	}
	if s.Held = min(s.Held, s.Waiting); has(instance.Suspect, instance.Quarantined) && !has(instance.Ready) {
		s.Held = s.Waiting // so are those of the queue
	}
	s.Count()
	return s, list, err
}

// ownStatus returns the status of the manager, with the notes of drained VMs. Of those that wait it counts the leases:
// builds that wait are in the queue, too.
func (m *Manager) ownStatus() control.Status {
	s := control.StatusOf(control.Config{
		Provider: m.cfg.Provider, Version: m.cfg.Version, InventoryErr: m.cfg.InventoryErr,
	}, m.since)
	s.Servers = m.servers()
	var notes map[string]vmNote
	s.Groups, notes = m.groups.stats()
	waiting := m.cfg.Group.Waiting()
	s.Waiting = len(slices.DeleteFunc(waiting, func(id string) bool { return !strings.HasPrefix(id, leaseName) }))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range s.Instances {
		vm := &s.Instances[i]
		for j := range vm.Builds { // without the number of an attempt, see attemptID
			vm.Builds[j].ID, _, _ = strings.Cut(vm.Builds[j].ID, ".")
			if b := m.live[vm.Builds[j].ID]; b != nil {
				vm.Builds[j].File = b.asked.GetJob().GetStepsFile()
			}
		}
		vm.Group, vm.Note = notes[vm.ID].group, notes[vm.ID].note
		d := m.drains[vm.ID]
		if (d == nil || d.over) && vm.State == string(instance.Draining) {
			vm.Reason = vm.Note
		}
		if d == nil || d.over || vm.State != string(instance.Draining) {
			continue
		}
		note := d.Note
		if !d.Until.IsZero() {
			note = strings.TrimSpace(fmt.Sprintf("%s (until %s)", d.Note, d.Until.Local().Format(time.DateTime+" MST")))
		}
		if note != "" && vm.Reason != "" {
			note += "; "
		}
		vm.Reason = note + vm.Reason
	}
	return s
}
