package manager

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/manager/scaler"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
)

// elasticGroup is the manager, for the scaler of a group.
type elasticGroup struct {
	m      *Manager
	cfg    VMGroup
	scaler *scaler.Scaler

	// The scaler's goroutine has the following.
	used     map[string]usedVM
	revision uint64 // of the record, if this manager scales; else 0

	mu       sync.Mutex // guards the following
	drained  map[string]bool
	reaching map[string]*reaching // VMs that were not reached yet
}

// usedVM is a VM of the group, as it was listed, and its instance.
type usedVM struct {
	vm source.VM
	in instance.Instance
}

// reaching is the attempt to reach a new VM.
type reaching struct {
	stop context.CancelFunc
	err  error // of the last attempt
}

const (
	// recordsKey begins the keys of the records of groups, and vmsKey those of their VMs, among the texts of the store.
	recordsKey, vmsKey = "elastic", "elasticvms"
	// reachTime bounds an attempt to reach a VM, and reachPause is the pause after it.
	reachTime, reachPause = time.Minute, time.Second
)

func (g *elasticGroup) holdsBackLocked(id string) bool { return g.drained[id] || g.reaching[id] != nil }

// Use implements scaler.Host.
func (g *elasticGroup) Use(ctx context.Context, vms []source.VM) error {
	next, fresh := map[string]usedVM{}, []source.VM(nil)
	for _, vm := range vms {
		if known, is := g.used[vm.ID]; is && sameWay(known.vm, vm) {
			next[vm.ID] = known
		} else {
			fresh = append(fresh, vm)
		}
	}
	if len(fresh) == 0 && len(next) == len(g.used) {
		return nil
	}
	instances, err := g.cfg.Instances(ctx, fresh)
	if err != nil {
		return fmt.Errorf("use the VMs of the source: %w", err)
	}
	for i, in := range instances {
		next[in.ID] = usedVM{fresh[i], in}
	}
	if err := g.checkOthers(instances); err != nil {
		return err
	}
	var all []instance.Instance
	for _, id := range slices.Sorted(maps.Keys(next)) {
		all = append(all, next[id].in)
	}
	var added []string
	for id := range next {
		if _, is := g.used[id]; !is {
			added = append(added, id)
		}
	}
	g.m.draining.Lock()
	defer g.m.draining.Unlock()
	for _, id := range added {
		_ = g.m.cfg.Group.Drain(id) // it is not there yet, and takes no builds when it comes
	}
	if err := g.m.cfg.Group.UpdatePart(g.cfg.Name, all); err != nil {
		for _, id := range added {
			g.m.letIn(id)
		}
		return fmt.Errorf("use the VMs of the source: %w", err)
	}
	before := g.used
	g.used = next
	for _, id := range added {
		g.reach(id) //nolint:contextcheck // it goes on
	}
	for id, was := range before {
		if _, is := next[id]; !is {
			g.forget(ctx, was.in)
		}
	}
	return nil
}

// sameWay reports whether two descriptions of a VM lead to the same instance.
func sameWay(a, b source.VM) bool {
	a.State, a.Created, a.Protected = b.State, b.Created, b.Protected
	return reflect.DeepEqual(a, b)
}

// checkOthers returns an error if a VM has the address of one that does not belong to the group.
func (g *elasticGroup) checkOthers(fresh []instance.Instance) error {
	if len(fresh) == 0 {
		return nil
	}
	jump := func(in instance.Instance) string {
		if in.Jump == nil {
			return ""
		}
		return in.Jump.ID
	}
	others := map[string]string{}
	for _, in := range g.m.cfg.Group.Instances() {
		if _, own := g.used[in.ID]; !own {
			others[in.Addr+" "+jump(in)] = in.ID
		}
	}
	for _, in := range fresh {
		if other := others[in.Addr+" "+jump(in)]; other != "" && other != in.ID {
			return fmt.Errorf("use the VMs of the source: %s has the address %s of the instance %s", in.ID, in.Addr, other)
		}
	}
	return nil
}

// reach connects to a new VM, and then lets it take builds. draining is held.
func (g *elasticGroup) reach(id string) {
	ctx, cancel := context.WithCancel(g.m.takes)
	r := &reaching{stop: cancel}
	g.mu.Lock()
	g.reaching[id] = r
	g.mu.Unlock()
	g.m.spawn(func() {
		defer cancel()
		for ctx.Err() == nil {
			err := instance.ErrElsewhere
			if g.m.fleet.Has(id) {
				once, stop := context.WithTimeout(ctx, reachTime)
				err = g.m.cfg.Provider.Reach(once, id)
				stop()
			}
			if err == nil {
				g.reached(id, r)
				return
			}
			g.mu.Lock()
			r.err = err
			g.mu.Unlock()
			_ = pause.For(ctx, reachPause)
		}
	})
}

// reached lets a VM take builds, unless it has left.
func (g *elasticGroup) reached(id string, r *reaching) {
	g.m.draining.Lock()
	defer g.m.draining.Unlock()
	g.mu.Lock()
	current := g.reaching[id] == r
	if current {
		delete(g.reaching, id)
	}
	g.mu.Unlock()
	if current {
		g.m.letIn(id)
	}
}

// forget forgets a VM that is gone. draining is held.
func (g *elasticGroup) forget(ctx context.Context, was instance.Instance) {
	g.mu.Lock()
	if r := g.reaching[was.ID]; r != nil {
		r.stop()
		delete(g.reaching, was.ID)
	}
	delete(g.drained, was.ID)
	g.mu.Unlock()
	g.m.letIn(was.ID)
	g.m.spawn(func() { g.m.forgetDrain(was.ID) }) //nolint:contextcheck // it goes on
	if err := was.SSH.HostKeys.Forget(ctx, was.ID); err != nil {
		g.m.cfg.Logger.Warn("cannot forget the host key of a VM that is gone", "instance", was.ID, "error", err)
	}
}

// Drain implements scaler.Host.
func (g *elasticGroup) Drain(ids map[string]bool) {
	g.m.draining.Lock()
	defer g.m.draining.Unlock()
	g.mu.Lock()
	var changed []string
	for id := range ids {
		if !g.drained[id] {
			changed = append(changed, id)
		}
	}
	for id := range g.drained {
		if !ids[id] {
			changed = append(changed, id)
		}
	}
	g.drained = maps.Clone(ids)
	g.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	for _, id := range changed {
		if ids[id] {
			_ = g.m.cfg.Group.Drain(id) // it may not be there any more
		} else {
			g.m.letIn(id)
		}
	}
	g.m.fleet.drained()
}

// letIn lets a VM take builds, unless an operator or its group holds it back. draining is held.
func (m *Manager) letIn(id string) {
	m.mu.Lock()
	d := m.drains[id]
	byOperator := d != nil && !d.over
	m.mu.Unlock()
	if !byOperator && !m.groups.holdsBack(id) {
		_ = m.cfg.Group.Undrain(id) // fails only for a VM that is not in the set
	}
}

// Look implements scaler.Host.
func (g *elasticGroup) Look(ctx context.Context) (scaler.Look, error) {
	all, err := g.m.lookAll(ctx)
	if err != nil {
		return scaler.Look{}, err
	}
	look := scaler.Look{VMs: map[string]scaler.Usage{}}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.used {
		vm, has := all.vms[id]
		if !has {
			continue
		}
		drained, ready := vm.State == string(instance.Draining), vm.Conn.Made > 0
		byOperator := drained && ready && !g.holdsBackLocked(id)
		u := scaler.Usage{
			Used: len(vm.Builds), Uses: vm.Uses, Ready: ready, Alive: vm.Conn.State == "up", Drained: drained,
			Closed: vm.State == string(instance.Quarantined) || byOperator,
		}
		if vm.Ill != nil && !byOperator {
			u.Ill = *vm.Ill
		}
		look.VMs[id] = u
	}
	for _, labels := range all.waiting {
		if instance.HasLabels(g.cfg.Labels, labels) {
			look.Waiting++
		}
	}
	return look, nil
}

// Busy implements scaler.Host.
func (g *elasticGroup) Busy(ctx context.Context) (map[string]bool, error) { return g.m.inUse(ctx) }

func (g *elasticGroup) key() string { return recordsKey + "." + g.cfg.Name }

// Claim implements scaler.Host.
func (g *elasticGroup) Claim(ctx context.Context) (record []byte, mine bool, err error) {
	if g.revision != 0 {
		record, err = g.m.store.Task(ctx, g.key())
		return record, true, err
	}
	revisions, err := g.m.store.Tasks(ctx, recordsKey)
	if err != nil {
		return nil, false, err
	}
	was := revisions[g.key()]
	if was == 0 {
		g.revision, err = g.m.store.KeepTask(ctx, g.key(), g.m.fleet.ID(), []byte("{}"), 0)
		if errors.Is(err, state.ErrTaken) { // by another manager, just now
			return nil, false, nil
		}
		return nil, err == nil, err
	}
	record, g.revision, err = g.m.store.TakeTask(ctx, g.key(), was, g.m.fleet.ID(), func(manager string) bool {
		return g.m.fleet.Free(ctx, manager)
	})
	if err != nil || g.revision != 0 {
		return record, err == nil, err
	}
	record, err = g.m.store.Task(ctx, g.key())
	return record, false, err
}

// Keep implements scaler.Host.
func (g *elasticGroup) Keep(ctx context.Context, record []byte) error {
	revision, err := g.m.store.KeepTask(ctx, g.key(), g.m.fleet.ID(), record, g.revision)
	if err == nil {
		g.revision = revision
		return nil
	}
	g.revision = 0 // it is read again
	if errors.Is(err, state.ErrTaken) {
		return scaler.ErrLost
	}
	return err
}

// vmKey returns the key of a VM among the texts of the store.
func (g *elasticGroup) vmKey(id string) string {
	return vmsKey + "." + g.cfg.Name + "." + base64.RawURLEncoding.EncodeToString([]byte(id))
}

// KeptVMs implements scaler.Host.
func (g *elasticGroup) KeptVMs(ctx context.Context) (map[string][]byte, error) {
	texts, err := g.m.store.KeptTexts(ctx, vmsKey+"."+g.cfg.Name)
	all := map[string][]byte{}
	for key, text := range texts {
		id, bad := base64.RawURLEncoding.DecodeString(key[strings.LastIndexByte(key, '.')+1:])
		if bad == nil {
			all[string(id)] = text
		}
	}
	return all, err
}

// KeepVM implements scaler.Host.
func (g *elasticGroup) KeepVM(ctx context.Context, id string, text []byte) error {
	return g.m.store.KeepText(ctx, g.vmKey(id), text)
}

// ForgetVM implements scaler.Host.
func (g *elasticGroup) ForgetVM(ctx context.Context, id string) error {
	return g.m.store.ForgetText(ctx, g.vmKey(id))
}

// Note implements scaler.Host.
func (g *elasticGroup) Note(action, id, why string) {
	g.m.cfg.Logger.Info("group of VMs", "group", g.cfg.Name, "action", action, "instance", id, "why", why)
	g.m.tell(state.Event{Kind: action, Instance: id, Group: g.cfg.Name, Note: why})
}
