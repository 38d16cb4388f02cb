package manager

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
)

// drained is a VM that an operator takes out. It is kept, so that a manager that is started anew takes it out too.
type drained struct {
	Instance string    `json:"instance"`
	Note     string    `json:"note,omitempty"`
	Until    time.Time `json:"until,omitzero"`

	revision uint64      // of its key
	timer    *time.Timer // ends it; nil if nothing does
}

const drainPrefix = "drain."

// drainKey returns the key of a VM in the bucket, which does not take all characters of an ID.
func drainKey(id string) string {
	return drainPrefix + base64.RawURLEncoding.EncodeToString([]byte(id))
}

// drain takes a VM out, for some time unless that is zero.
func (m *Manager) drain(ctx context.Context, id, note string, limit time.Duration) error {
	d := &drained{Instance: id, Note: note}
	if limit > 0 {
		d.Until = time.Now().Add(limit)
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if d.revision, err = m.store.fleet.Put(ctx, drainKey(id), text); err != nil {
		return fmt.Errorf("keep the drain of %s: %w", id, err)
	}
	m.cfg.Logger.Info("instance is drained", "instance", id, "note", note, "for", limit)
	m.setDrained(d) //nolint:contextcheck // its timer outlives ctx
	return m.cfg.Group.Drain(id)
}

// setDrained notes a drain, and ends it in time.
func (m *Manager) setDrained(d *drained) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := m.drains[d.Instance]; before != nil && before.timer != nil {
		before.timer.Stop()
	}
	if !d.Until.IsZero() {
		d.timer = time.AfterFunc(time.Until(d.Until), func() {
			if m.takes.Err() != nil {
				return
			}
			ctx, cancel := context.WithTimeout(m.takes, storeTimeout)
			defer cancel()
			err := m.undrainedBy(ctx, "the end of the drain's time", d.Instance, jetstream.LastRevision(d.revision))
			if err != nil && !wasChanged(err) { // by another manager
				m.cfg.Logger.Error("cannot undrain", "instance", d.Instance, "error", err)
			}
		})
	}
	m.drains[d.Instance] = d
}

// undrain lets a VM take builds again.
func (m *Manager) undrain(ctx context.Context, id string, options ...jetstream.KVDeleteOpt) error {
	if err := m.store.fleet.Purge(ctx, drainKey(id), options...); err != nil {
		return fmt.Errorf("forget the drain of %s: %w", id, err)
	}
	return m.setUndrained(id)
}

func (m *Manager) setUndrained(id string) error {
	m.mu.Lock()
	if d := m.drains[id]; d != nil && d.timer != nil {
		d.timer.Stop()
	}
	delete(m.drains, id)
	m.mu.Unlock()
	m.cfg.Logger.Info("instance is no longer drained", "instance", id)
	return m.cfg.Group.Undrain(id)
}

// restoreDrains takes out the VMs that were drained before.
func (m *Manager) restoreDrains(ctx context.Context) error {
	keys, err := m.store.fleet.ListKeysFiltered(ctx, drainPrefix+"*")
	if err != nil {
		return fmt.Errorf("read the drains: %w", err)
	}
	var names []string
	for key := range keys.Keys() {
		names = append(names, key)
	}
	for _, key := range names {
		entry, err := m.store.fleet.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		d := &drained{}
		if err == nil {
			d.revision, err = entry.Revision(), json.Unmarshal(entry.Value(), d)
		}
		if err != nil {
			return fmt.Errorf("read the drains: %w", err)
		}
		err = m.cfg.Group.Drain(d.Instance)
		if errors.Is(err, instance.ErrUnknown) { // it has left the inventory
			continue
		}
		if err != nil {
			return err
		}
		m.setDrained(d) //nolint:contextcheck // its timer outlives ctx
	}
	return nil
}

// noteDrain repeats a drain or undrain of another manager here.
func (m *Manager) noteDrain(entry jetstream.KeyValueEntry) {
	id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(entry.Key(), drainPrefix))
	if err != nil {
		return
	}
	m.mu.Lock()
	known := m.drains[string(id)]
	m.mu.Unlock()
	d := &drained{revision: entry.Revision()}
	switch {
	case known != nil && known.revision >= d.revision:
		return
	case entry.Operation() != jetstream.KeyValuePut:
		if known != nil {
			err = m.setUndrained(known.Instance)
		}
	case json.Unmarshal(entry.Value(), d) == nil:
		m.setDrained(d)
		err = m.cfg.Group.Drain(d.Instance)
	}
	if err != nil && !errors.Is(err, instance.ErrUnknown) {
		m.cfg.Logger.Error("cannot drain as another manager does", "instance", string(id), "error", err)
	}
}

// status returns the status of the fleet. In a cluster that is the VMs of all managers, and the rest is this one's.
func (m *Manager) status(ctx context.Context) control.Status {
	s := m.ownStatus()
	if m.cluster == nil {
		return s
	}
	others := map[string]control.VM{}
	m.ask(ctx, peerQuestion{Status: true}, func(a *peerAnswer) bool {
		s.Waiting += a.Waiting
		for _, vm := range a.VMs {
			others[vm.ID] = vm
		}
		return true
	})
	for i, vm := range s.Instances {
		if theirs, ok := others[vm.ID]; ok && vm.State == string(instance.Elsewhere) {
			s.Instances[i] = theirs
		}
	}
	return s
}

// ownStatus returns the status of the manager, with the notes of drained VMs.
func (m *Manager) ownStatus() control.Status {
	s := control.StatusOf(control.Config{
		Provider: m.cfg.Provider, Version: m.cfg.Version, InventoryErr: m.cfg.InventoryErr,
	}, m.since)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range s.Instances {
		vm := &s.Instances[i]
		d := m.drains[vm.ID]
		if d == nil || vm.State != string(instance.Draining) {
			continue
		}
		vm.Reason = d.Note
		if !d.Until.IsZero() {
			vm.Reason = strings.TrimSpace(fmt.Sprintf("%s (until %s)", d.Note, d.Until.Format(time.DateTime)))
		}
	}
	return s
}
