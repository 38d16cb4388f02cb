package claims

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// claim records which manager holds a VM.
type claim struct {
	Instance string `json:"instance"`
	Manager  string `json:"manager,omitempty"` // empty: the VM is free

	revision uint64
	removed  time.Time // when it was noted that the claim was removed; zero if it was not
}

const (
	// markTime is how long the mark of a claim stays that was removed, so that all managers learn of the removal.
	markTime = 10 * time.Minute
	// maxForgotten bounds the claims that a look removes.
	maxForgotten = 256
)

// claimKey returns the key of a claim in the bucket, which does not take all characters of an ID.
func claimKey(id string) string {
	return claimPrefix + base64.RawURLEncoding.EncodeToString([]byte(id))
}

// balance takes VMs that no manager has until this manager has its share, or gives one up if it has more.
func (c *Member) balance(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Lease/6) // the lease must be renewed in between
	defer cancel()
	set := c.usable()
	c.mu.Lock()
	held := len(c.held)
	share := (len(set) + c.aliveLocked() - 1) / c.aliveLocked()
	var mine, free []string
	dead := map[string][]string{} // by the manager that has them
	for _, id := range set {
		if _, ok := c.held[id]; ok {
			_ = c.cfg.Group.Hold(id) // it may have left the inventory, and come back
			continue
		}
		switch owner := c.claims[id].Manager; {
		case owner == c.id:
			mine = append(mine, id) // of an earlier lease
		case owner == "":
			free = append(free, id)
		case c.isDeadLocked(owner):
			dead[owner] = append(dead[owner], id)
		}
	}
	c.mu.Unlock()
	c.take(ctx, mine, len(mine))
	room := share - held - len(mine)
	room -= c.take(ctx, free, room)
	for manager, ids := range dead {
		if room > 0 && c.bury(ctx, manager) {
			room -= c.take(ctx, ids, room)
		}
	}
	c.giveUp(ctx, set, share)
}

// usable returns the IDs of the VMs of the inventory that managers can share.
func (c *Member) usable() []string {
	all := c.cfg.Group.Instances()
	jumps := map[string]bool{}
	for _, in := range all {
		for j := in.Jump; j != nil; j = j.Jump {
			jumps[j.ID] = true
		}
	}
	var ids []string
	for _, in := range all {
		if !jumps[in.ID] {
			ids = append(ids, in.ID)
		}
	}
	return ids
}

// take claims VMs, at most so many, and returns how many it has got.
func (c *Member) take(ctx context.Context, ids []string, most int) (n int) {
	for _, id := range ids {
		if n >= most || ctx.Err() != nil {
			break
		}
		c.mu.Lock()
		revision := c.claims[id].revision
		c.mu.Unlock()
		revision, err := c.put(ctx, claim{Instance: id, Manager: c.id}, revision)
		if err != nil {
			c.refused(ctx, "cannot claim an instance", id, err)
			continue // perhaps another manager was faster
		}
		n++
		c.mu.Lock()
		c.held[id] = revision
		c.mu.Unlock()
		_ = c.cfg.Group.Hold(id) // it may have left the inventory
		c.cfg.Logger.Info("instance is claimed", "instance", id)
	}
	return n
}

// put changes a claim by compare-and-set.
func (c *Member) put(ctx context.Context, now claim, revision uint64) (uint64, error) {
	revision, err := c.cfg.Store.Write(ctx, c.cfg.Store.Fleet, claimKey(now.Instance), natscall.Encode(now),
		jetstream.WithExpectLastSequencePerSubject(revision))
	if err == nil {
		now.revision = revision
		c.mu.Lock()
		c.claims[now.Instance] = now
		c.mu.Unlock()
	}
	return revision, err
}

// refused reads a claim again that has another revision than this manager knows, and logs other errors of a change.
func (c *Member) refused(ctx context.Context, what, id string, err error) {
	if natscall.Changed(err) {
		var entry jetstream.KeyValueEntry
		switch entry, err = c.cfg.Store.Fleet.Get(ctx, claimKey(id)); {
		case err == nil:
			c.noteClaim(entry)
		case errors.Is(err, jetstream.ErrKeyNotFound): // it was removed, and perhaps its mark has gone
			err = nil
			c.mu.Lock()
			delete(c.claims, id)
			c.mu.Unlock()
		}
	}
	if err != nil && ctx.Err() == nil {
		c.cfg.Logger.Warn(what, "instance", id, "error", err)
	}
}

// bury puts a mark in place of the lease of another manager, and reports whether it could: the lease has ended then.
func (c *Member) bury(ctx context.Context, manager string) bool {
	var now lifeSign
	revision := uint64(0)
	entry, err := c.managers.Get(ctx, manager)
	if err == nil {
		revision, err = entry.Revision(), json.Unmarshal(entry.Value(), &now)
	} else if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = nil
	}
	if err == nil && now.Life == "" {
		if revision > 0 {
			_, err = c.managers.Update(ctx, manager, natscall.Encode(lifeSign{}), revision)
		} else {
			_, err = c.managers.Create(ctx, manager, natscall.Encode(lifeSign{}))
		}
		if err == nil {
			c.cfg.Logger.Warn("another manager is dead: its instances are taken over", "manager", manager)
			return true
		}
	}
	if err == nil { // it lives
		c.mu.Lock()
		c.peers[manager] = neighbour{now.Life, time.Now()}
		c.mu.Unlock()
	}
	return false
}

// giveUp gives up VMs that have left the inventory and have no builds. If this manager has more than its share, giveUp
// also gives up one VM without leases. It waits maxSurplus checks for an idle VM before it gives up a busy one.
func (c *Member) giveUp(ctx context.Context, set []string, share int) {
	builds, leased := map[string]int{}, map[string]bool{}
	for _, vm := range c.cfg.Provider.Stat().Instances {
		builds[vm.ID] = len(vm.Builds)
		for _, b := range vm.Builds {
			leased[vm.ID] = leased[vm.ID] || c.cfg.IsLease(b.ID)
		}
	}
	best, kept := "", 0
	for _, id := range c.Held() {
		switch {
		case slices.Contains(set, id):
			kept++
			if !leased[id] && (best == "" || builds[id] < builds[best]) {
				best = id
			}
		case builds[id] == 0:
			c.release(ctx, id)
		}
	}
	if best == "" || kept <= share {
		c.surplus = 0
		return
	}
	if c.surplus++; builds[best] == 0 || c.surplus >= maxSurplus {
		c.surplus = 0
		c.release(ctx, best)
	}
}

// release gives up a VM for other managers.
func (c *Member) release(ctx context.Context, id string) {
	revision := c.yield(id)
	if _, err := c.put(ctx, claim{Instance: id}, revision); err != nil {
		c.cfg.Logger.Warn("cannot give an instance to another manager", "instance", id, "error", err)
		return // it is taken again
	}
	c.cfg.Logger.Info("instance is given up for another manager", "instance", id)
}

// forget removes claims of VMs that have left the inventory, unless a manager that lives has them. VMs that come and go
// would leave a claim each. A manager whose inventory still has such a VM claims it again.
func (c *Member) forget(ctx context.Context) {
	usable := map[string]bool{}
	for _, id := range c.usable() {
		usable[id] = true
	}
	var gone []claim
	c.mu.Lock()
	for id, known := range c.claims {
		_, held := c.held[id]
		switch owner := known.Manager; {
		case !known.removed.IsZero():
			if time.Since(known.removed) > 2*markTime { // the mark has gone
				delete(c.claims, id)
			}
		case held || usable[id] || len(gone) == maxForgotten:
		case owner == "" || owner == c.id || c.isDeadLocked(owner):
			gone = append(gone, known)
		}
	}
	c.mu.Unlock()
	ended := map[string]bool{"": true, c.id: true} // managers that use no VM of theirs in gone
	for _, known := range gone {
		if ctx.Err() != nil {
			return
		}
		if _, asked := ended[known.Manager]; !asked {
			ended[known.Manager] = c.bury(ctx, known.Manager)
		}
		if ended[known.Manager] {
			c.remove(ctx, known)
		}
	}
}

// remove removes a claim by compare-and-set. A mark stays for a while.
func (c *Member) remove(ctx context.Context, known claim) {
	revision, err := c.cfg.Store.Purge(ctx, c.cfg.Store.Fleet, claimKey(known.Instance),
		jetstream.WithExpectLastSequencePerSubject(known.revision), jetstream.WithMsgTTL(markTime))
	if err != nil {
		c.refused(ctx, "cannot remove the claim of an instance that is gone", known.Instance, err)
		return
	}
	c.mu.Lock()
	c.claims[known.Instance] = claim{Instance: known.Instance, revision: revision, removed: time.Now()}
	c.mu.Unlock()
	c.cfg.Logger.Debug("the claim of an instance that is gone is removed", "instance", known.Instance)
}

// Leave gives up all VMs, when the manager ends.
func (c *Member) Leave(ctx context.Context) {
	c.endTerm()
	for _, id := range c.Held() {
		if c.release(ctx, id); ctx.Err() != nil {
			break
		}
	}
	if c.life != "" {
		_ = c.managers.Delete(ctx, c.id, jetstream.LastRevision(c.revision)) // else it ends by itself
	}
}

// Has reports whether this manager has a VM. It also reports true for a VM that has left the inventory and that no
// living manager has: this manager may end the builds there.
func (c *Member) Has(id string) bool {
	known := slices.ContainsFunc(c.cfg.Group.Instances(), func(in instance.Instance) bool { return in.ID == id })
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, held := c.held[id]; held {
		return true
	}
	owner := c.claims[id].Manager
	return !known && (owner == "" || owner == c.id || c.isDeadLocked(owner))
}

// OwnerOf returns another manager if all VMs that fit are those of other managers that live, else "".
func (c *Member) OwnerOf(fits func(instance.Instance) bool) (manager string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, in := range c.cfg.Group.Instances() {
		if !fits(in) {
			continue
		}
		if manager = c.claims[in.ID].Manager; manager == "" || manager == c.id || c.isDeadLocked(manager) {
			return ""
		}
	}
	return manager
}
