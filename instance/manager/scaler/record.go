package scaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/stepmux/stepmux/instance/elastic/source"
)

// record is the stored state of a group.
type record struct {
	// Requests are VMs that the source was asked to make, and that were not all listed yet.
	Requests []*request `json:"requests,omitempty"`
	// Deletes are VMs that the source is being asked to delete, for a reason.
	Deletes []string `json:"deletes,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	// Drained are the VMs that take no builds because of the policy.
	Drained []string `json:"drained,omitempty"`
}

// request asks for VMs.
type request struct {
	ID       string    `json:"id"`
	Count    int       `json:"count"`
	Left     int       `json:"left"` // that were not listed yet
	IDs      []string  `json:"ids,omitempty"`
	At       time.Time `json:"at"`
	Answered bool      `json:"answered,omitempty"`
}

func readRecord(text []byte) (r record, err error) {
	if len(text) == 0 {
		return r, nil
	}
	if err = json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("read the record of the group: %w", err)
	}
	return r, nil
}

// keep keeps the record. If it returns false, nothing may be done that the record is about.
func (s *Scaler) keep(ctx context.Context) bool {
	text, err := json.Marshal(s.record)
	if err == nil {
		err = s.host.Keep(ctx, text)
	}
	if err == nil {
		return true
	}
	s.mine = false // what is kept is read again
	if !errors.Is(err, ErrLost) && ctx.Err() == nil {
		s.log.Warn("cannot keep the record of the group", "error", err)
	}
	return false
}

// applyDrains takes the VMs out that the record names, and those that are not running.
func (s *Scaler) applyDrains() {
	out := map[string]bool{}
	for _, id := range slices.Concat(s.record.Drained, s.record.Deletes) {
		out[id] = true
	}
	for id, k := range s.known {
		if k.vm.State != source.Running || !k.deleting.IsZero() {
			out[id] = true
		}
	}
	s.host.Drain(out)
}

// loadKept reads which VMs are kept.
func (s *Scaler) loadKept(ctx context.Context) error {
	kept, err := s.host.KeptVMs(ctx)
	if err != nil {
		return fmt.Errorf("read the VMs of the group %s: %w", s.cfg.Name, err)
	}
	clear(s.kept)
	for _, k := range s.known {
		k.kept = false
	}
	for id, text := range kept {
		s.kept[id] = string(text)
	}
	return nil
}

// keepVMs keeps the known VMs, and forgets others. What fails is tried again after the next list.
func (s *Scaler) keepVMs(ctx context.Context) {
	for id, k := range s.known {
		if k.kept && s.kept[id] != "" {
			continue
		}
		text, err := json.Marshal(k.vm)
		if err == nil && s.kept[id] != string(text) {
			if err = s.host.KeepVM(ctx, id, text); err == nil {
				s.kept[id] = string(text)
			}
		}
		if err != nil {
			s.log.Warn("cannot keep a VM", "instance", id, "error", err)
			return
		}
		k.kept = true
	}
	for _, id := range slices.Sorted(maps.Keys(s.kept)) {
		if s.known[id] != nil {
			continue
		}
		if err := s.host.ForgetVM(ctx, id); err != nil {
			s.log.Warn("cannot forget a VM", "instance", id, "error", err)
			return
		}
		delete(s.kept, id)
	}
}

func readVM(text string) (vm source.VM, err error) {
	err = json.Unmarshal([]byte(text), &vm)
	return vm, err
}
