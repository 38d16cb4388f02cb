package manager

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/privatefile"
)

const (
	managersBucket = "STEPMUX_MANAGERS"
	claimPrefix    = "vm."
	cancelPrefix   = "cancel." // of the marks of builds that were canceled, beside the leases
	idFile         = "manager-id"

	// DefaultLease is how long the VMs of a manager that says nothing stay with it.
	DefaultLease = 30 * time.Second

	// maxSurplus is how many looks a manager with too many VMs waits for one without builds, before it gives up another.
	maxSurplus = 6
)

// shared is the part of a manager in a fleet that several managers share. These rules keep two of them from using one
// VM at a time:
//
//   - A manager has a lease: a key that is gone a while after it was renewed the last time. The manager stops using its
//     VMs well before that.
//   - A claim says which manager has a VM. It is changed by compare-and-set.
//   - Before a manager takes the claims of a dead one, it puts a mark in place of that one's lease. This succeeds only
//     if the lease has ended. A manager that comes back takes its claims anew before it uses their VMs.
//
// The goroutine of run owns it.
type shared struct {
	m        *Manager
	id, host string        // of this manager
	ttl      time.Duration // of leases
	managers jetstream.KeyValue
	claimed  jetstream.KeyWatcher // all changes of claims and drains; nil if it is not open
	leased   jetstream.KeyWatcher // and of leases
	found    chan struct{}        // has an element if builds may be there to be resumed

	life     string // names the lease; empty without one
	revision uint64 // of the lease
	until    time.Time
	surplus  int // how many looks in a row found too many VMs here, and all of them busy

	mu     sync.Mutex           // guards the following
	held   map[string]uint64    // the revisions of its claims, by the ID of the VM
	claims map[string]claim     // of all managers, by the ID of the VM
	peers  map[string]neighbour // the other managers
}

// lifeSign is a manager's lease as it is kept.
type lifeSign struct {
	Life string `json:"life"` // empty: others have taken its claims
	Host string `json:"host,omitempty"`
}

// neighbour is another manager.
type neighbour struct {
	life string
	seen time.Time // when its lease was renewed, as far as is known here
}

func newShared(m *Manager) *shared {
	return &shared{
		m: m, ttl: m.cfg.Lease, found: make(chan struct{}, 1),
		held: map[string]uint64{}, claims: map[string]claim{}, peers: map[string]neighbour{},
	}
}

// join takes part in the fleet of the store. When it returns, this manager has the VMs that it had before, and its
// share of those that no manager has.
func (c *shared) join(ctx context.Context) (err error) {
	m := c.m
	if c.id, c.host, err = identity(m.cfg.Dir); err != nil {
		return err
	}
	m.cfg.Group.Share()
	if c.managers, err = m.store.Bucket(ctx, managersBucket, c.ttl, 0); err != nil {
		return fmt.Errorf("open the list of managers: %w", err)
	}
	if err := m.store.Persist(ctx, c.watch); err != nil {
		return err
	}
	for c.life == "" {
		if err = m.store.Persist(ctx, c.renew); err == nil {
			break
		}
		if !errors.Is(err, errSameID) {
			return fmt.Errorf("take part in the cluster: %w", err)
		}
		m.cfg.Logger.Warn("waits for the end of another manager's lease", "error", err)
		if err := pause.For(ctx, c.ttl/6); err != nil {
			return err
		}
	}
	c.balance(ctx)
	return nil
}

// start answers the other managers, and begins to look after the lease and for builds to resume.
func (c *shared) start(context.Context) error {
	if err := c.answer(); err != nil {
		return err
	}
	c.m.wg.Go(c.run)
	c.m.wg.Go(c.resumeFound)
	return nil
}

// identity returns the ID in a state directory, and a text that differs for a copy of the directory.
func identity(dir string) (id, host string, err error) {
	file := filepath.Join(dir, idFile)
	text, err := privatefile.Open(file, maxIDFile, newID)
	if id, err = checkID(file, text, err); err != nil {
		return "", "", err
	}
	name, err := os.Hostname()
	if err != nil {
		return "", "", err
	}
	dir, err = filepath.Abs(dir)
	return id, name + ":" + dir, err
}

// maxIDFile bounds the file with the ID of a manager, in bytes.
const maxIDFile = 64

func newID() ([]byte, error) { return []byte(strings.ToLower(rand.Text())[:10]), nil }

// checkID returns the ID in the text of a file, which was read with err.
func checkID(file string, text []byte, err error) (string, error) {
	id := strings.TrimSpace(string(text))
	if err == nil && (len(id) != 10 || strings.Trim(id, keyLetters) != "") {
		err = fmt.Errorf("%s is no ID of a manager", file)
	}
	if err != nil {
		return "", fmt.Errorf("the manager's ID: %w", err)
	}
	return id, nil
}

// run renews the lease, and sees to it that this manager has its share of the VMs, until the manager takes no more
// builds.
func (c *shared) run() {
	tick := time.NewTicker(c.ttl / 6)
	defer tick.Stop()
	end := time.NewTimer(time.Until(c.until))
	defer end.Stop()
	for {
		select {
		case entry, ok := <-updates(c.claimed):
			if c.note(entry); !ok {
				c.claimed = nil // the next tick opens it again
			}
			continue
		case entry, ok := <-updates(c.leased):
			if c.note(entry); !ok {
				c.leased = nil
			}
			continue
		case <-end.C:
			c.fence("its lease could not be renewed")
			continue
		case <-c.m.takes.Done():
			return
		case <-tick.C:
		}
		limit := time.Now().Add(c.ttl / 3)
		if c.life != "" && c.until.Before(limit) {
			limit = c.until
		}
		ctx, cancel := context.WithDeadline(c.m.takes, limit)
		failed, err := "cannot renew the manager's lease", c.renew(ctx)
		if err == nil {
			end.Reset(time.Until(c.until))
			failed, err = "cannot see what other managers do", c.watch(ctx)
		}
		switch {
		case err == nil:
			c.balance(ctx)
			c.sendToRoom(ctx)
			c.look() // for a build that was passed over, as because of an error
		case c.m.takes.Err() == nil:
			c.m.cfg.Logger.Warn(failed, "error", err)
		}
		cancel()
	}
}

// watch opens the watches of claims and leases that are not open. The library closes one that it cannot make anew after
// a break of the connection.
func (c *shared) watch(ctx context.Context) error {
	for bucket, watch := range map[jetstream.KeyValue]*jetstream.KeyWatcher{
		c.m.store.Fleet: &c.claimed, c.managers: &c.leased,
	} {
		if *watch != nil {
			continue
		}
		opened, err := bucket.WatchAll(c.m.life) //nolint:contextcheck // it lasts as long as the manager
		var present []jetstream.KeyValueEntry
		if err == nil {
			if present, err = natscall.Present(ctx, opened); err != nil {
				_ = opened.Stop() // it may be closed
			}
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", bucket.Bucket(), err)
		}
		for _, entry := range present {
			c.note(entry) //nolint:contextcheck // the timer of a drain outlives ctx
		}
		*watch = opened
	}
	return nil
}

// updates returns the updates of a watch, or nil if it is not open.
func updates(watch jetstream.KeyWatcher) <-chan jetstream.KeyValueEntry {
	if watch == nil {
		return nil
	}
	return watch.Updates()
}

// errSameID says that a manager with this ID is on another machine, or in another directory.
var errSameID = errors.New("another manager has the same ID: was the state directory copied?")

// renew renews the lease, or takes one.
func (c *shared) renew(ctx context.Context) error {
	sent, life := time.Now(), c.life
	if life == "" {
		life = rand.Text()
	}
	text := natscall.Encode(lifeSign{life, c.host})
	var err error
	if c.life != "" {
		var revision uint64
		if revision, err = c.managers.Update(ctx, c.id, text, c.revision); err == nil {
			c.leaseIs(life, revision, sent)
			return nil
		}
		if !natscall.Changed(err) {
			return err
		}
	}
	entry, err := c.managers.Get(ctx, c.id)
	var revision uint64
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		if c.life != "" {
			c.fence("its lease has ended")
			return errors.New("the lease has ended")
		}
		revision, err = c.managers.Create(ctx, c.id, text)
	case err == nil:
		var now lifeSign
		if err = json.Unmarshal(entry.Value(), &now); err != nil {
			return fmt.Errorf("read the lease: %w", err)
		}
		switch {
		case now.Life == c.life: // the answer to a renewal was lost
		case c.life != "":
			c.fence("another manager has taken its VMs")
			return errors.New("the lease was taken")
		case now.Life != "" && now.Host != c.host:
			return fmt.Errorf("%w %s is on %s", errSameID, c.id, now.Host)
		}
		revision, err = c.managers.Update(ctx, c.id, text, entry.Revision())
	}
	if err == nil {
		c.leaseIs(life, revision, sent)
	}
	return err
}

// leaseIs notes a lease that was renewed by a request that was sent at that time.
func (c *shared) leaseIs(life string, revision uint64, sent time.Time) {
	c.life, c.revision, c.until = life, revision, sent.Add(c.ttl*2/3)
}

// fence gives up all VMs at once.
func (c *shared) fence(why string) {
	if c.life == "" {
		return
	}
	c.life = ""
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.held))
	c.mu.Unlock()
	c.m.cfg.Logger.Error("the manager leaves its VMs", "because", why, "instances", len(held))
	for _, id := range held {
		c.yield(id)
	}
}

// yield stops the use of a VM. Builds there go on without this manager, and those that wait for such a VM are given
// back to the queue.
func (c *shared) yield(id string) (revision uint64) {
	c.m.cfg.Provider.Yield(id, c.m.abandon)
	c.mu.Lock()
	revision = c.held[id]
	delete(c.held, id)
	c.mu.Unlock()
	c.sendOn()
	return revision
}

// sendOn gives builds that wait, and for which no VM of this manager will do any more, back to the queue.
func (c *shared) sendOn() {
	for _, b := range c.m.builds() {
		if b.waits() && !c.m.cfg.Group.Takes(b.asked.GetLabels()) {
			c.m.leaveTo(b)
		}
	}
}

// note notes a change of a claim or a lease.
func (c *shared) note(entry jetstream.KeyValueEntry) {
	switch {
	case entry == nil:
		return
	case strings.HasPrefix(entry.Key(), drainPrefix):
		if err := c.m.noteDrain(entry); err != nil {
			c.m.cfg.Logger.Error("cannot drain as another manager does", "error", err)
		}
		return
	case strings.HasPrefix(entry.Key(), cancelPrefix):
		c.m.noteCancel(strings.TrimPrefix(entry.Key(), cancelPrefix))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry.Bucket() == managersBucket {
		var sign lifeSign
		if entry.Operation() == jetstream.KeyValuePut && json.Unmarshal(entry.Value(), &sign) != nil {
			return
		}
		if entry.Key() != c.id {
			c.peers[entry.Key()] = neighbour{sign.Life, time.Now()}
		}
		return
	}
	var now claim
	if !strings.HasPrefix(entry.Key(), claimPrefix) || entry.Operation() != jetstream.KeyValuePut ||
		json.Unmarshal(entry.Value(), &now) != nil || now.Instance == "" {
		return
	}
	now.revision = entry.Revision()
	if before := c.claims[now.Instance]; before.revision < now.revision {
		c.claims[now.Instance] = now
	}
}

// isDeadLocked reports whether a manager seems to be dead. mu is held.
func (c *shared) isDeadLocked(manager string) bool {
	p, known := c.peers[manager]
	if !known { // its lease may have ended before this manager began to watch
		c.peers[manager] = neighbour{life: "unknown", seen: time.Now()}
		return false
	}
	return p.life == "" || time.Since(p.seen) > c.ttl+c.ttl/4
}

// aliveLocked counts the managers. mu is held.
func (c *shared) aliveLocked() int {
	n := 1
	for id := range c.peers {
		if id != c.id && !c.isDeadLocked(id) {
			n++
		}
	}
	return n
}

// look asks for a look at the queue for builds that can be resumed.
func (c *shared) look() {
	select {
	case c.found <- struct{}{}:
	default:
	}
}

// resumeFound resumes builds on VMs that this manager has got.
func (c *shared) resumeFound() {
	for {
		select {
		case <-c.found:
		case <-c.m.takes.Done():
			return
		}
		if err := c.m.resume(c.m.takes); err != nil && c.m.takes.Err() == nil {
			c.m.cfg.Logger.Warn("cannot look for builds that run", "error", err)
			if pause.For(c.m.takes, time.Second) == nil {
				c.look()
			}
		}
	}
}

// abandon leaves builds and leases to another manager, by their names on the VM.
func (m *Manager) abandon(names []string) {
	for _, b := range m.builds() {
		if slices.Contains(names, b.attemptID()) {
			m.leaveTo(b)
		}
	}
	for _, name := range names {
		if l := m.findLease(name); l != nil {
			m.cfg.Logger.Warn("lease is lost with its instance", "lease", name)
			m.wg.Go(func() { _ = m.release(m.life, l, endVM) }) // logged there
		}
	}
}

// leaveTo leaves a build to another manager, unless its outcome is known.
func (m *Manager) leaveTo(b *build) {
	b.mu.Lock()
	b.left = b.left || !b.ending
	e, left := b.executor, b.left
	b.mu.Unlock()
	if left && e != nil {
		m.wg.Go(func() { _ = e.Leave(m.life) }) // it goes on
	}
}
