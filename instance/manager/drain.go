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

	timer *time.Timer // ends it; nil if nothing does
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
	if _, err := m.store.fleet.Put(ctx, drainKey(id), text); err != nil {
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
			if err := m.undrainedBy(ctx, "the end of the drain's time", d.Instance); err != nil {
				m.cfg.Logger.Error("cannot undrain", "instance", d.Instance, "error", err)
			}
		})
	}
	m.drains[d.Instance] = d
}

// undrain lets a VM take builds again.
func (m *Manager) undrain(ctx context.Context, id string) error {
	if err := m.store.fleet.Purge(ctx, drainKey(id)); err != nil {
		return fmt.Errorf("forget the drain of %s: %w", id, err)
	}
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
			err = json.Unmarshal(entry.Value(), d)
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

// status returns the status of the manager, with the notes of drained VMs.
func (m *Manager) status() control.Status {
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
