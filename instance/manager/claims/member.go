package claims

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/privatefile"
)

const (
	managersBucket = "STEPMUX_MANAGERS"
	claimPrefix    = "vm."
	cancelPrefix   = "cancel." // of the marks of builds that were canceled, beside the leases
	idFile         = "manager-id"

	// maxSurplus is how many looks a manager with too many VMs waits for one without builds, before it gives up another.
	maxSurplus = 6
)

// Config is the configuration of a Member. All fields are required.
type Config struct {
	// Dir has the file with the ID of the manager.
	Dir string
	// Lease is how long the VMs of a manager that says nothing stay with it, the same for all managers.
	Lease    time.Duration
	Store    *state.Store
	Group    *instance.Group
	Provider *instance.Provider
	Logger   *slog.Logger

	// Left is called when the manager has left a VM, with the builds and leases there: they go on without this manager.
	Left func(builds []string)
	// Renewed is called each time that the lease was renewed, and VMs were taken and given up, from Run.
	Renewed func(ctx context.Context)
	// Canceled is called with the ID of a build that a manager has canceled by TellCancel.
	Canceled func(build string)
	// Changed is called with each change in Store.Fleet, except changes of claims, and with all entries at Join.
	Changed func(jetstream.KeyValueEntry)
	// IsLease reports whether a build is a lease. A VM with leases is not given up for another manager.
	IsLease func(build string) bool
}

// Member is a manager in a fleet that several managers share. These rules keep two of them from using one
// VM at a time:
//
//   - A manager has a lease: a key that is gone a while after it was renewed the last time. The manager stops using its
//     VMs well before that.
//   - A claim says which manager has a VM. It is changed by compare-and-set.
//   - Before a manager takes the claims of a dead one, it puts a mark in place of that one's lease. This succeeds only
//     if the lease has ended. A manager that comes back takes its claims again before it uses their VMs.
//
// Join, Run and Leave are called one after the other, and the other methods by any goroutine once Join has returned.
type Member struct {
	cfg      Config
	watches  context.Context // their life
	id, host string          // of this manager
	managers jetstream.KeyValue
	claimed  jetstream.KeyWatcher // all changes of claims and drains; nil if it is not open
	leased   jetstream.KeyWatcher // and of leases

	life     string // names the lease; empty without one
	revision uint64 // of the lease
	until    time.Time
	surplus  int // consecutive checks with more VMs than our share and no idle VM

	mu     sync.Mutex // guards the following
	term   *term
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

// New returns a Member that does not take part yet.
func New(cfg Config) *Member {
	return &Member{
		cfg: cfg, term: noTerm(), held: map[string]uint64{}, claims: map[string]claim{}, peers: map[string]neighbour{},
	}
}

// Join takes part in the fleet of the store. When it returns, this manager has the VMs that it had before, and its
// share of those that no manager has. Its watches end with life. The caller calls Run, and then Leave.
func (c *Member) Join(ctx, life context.Context) (err error) {
	c.watches = life
	if c.id, c.host, err = identity(c.cfg.Dir); err != nil {
		return err
	}
	c.cfg.Group.Share()
	if c.managers, err = c.cfg.Store.Bucket(ctx, managersBucket, c.cfg.Lease, 0); err != nil {
		return fmt.Errorf("open the list of managers: %w", err)
	}
	if err := c.cfg.Store.Persist(ctx, c.watch); err != nil {
		return err
	}
	for c.life == "" {
		if err = c.cfg.Store.Persist(ctx, c.renew); err == nil {
			break
		}
		if !errors.Is(err, errSameID) {
			return fmt.Errorf("take part in the cluster: %w", err)
		}
		c.cfg.Logger.Warn("waits for the end of another manager's lease", "error", err)
		if err := pause.For(ctx, c.cfg.Lease/6); err != nil {
			return err
		}
	}
	c.balance(ctx)
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

// validID is the form of the ID of a manager.
var validID = regexp.MustCompile(`^[A-Za-z0-9._-]{10}$`)

// CheckID returns why Join with this Config.Dir would fail because of the manager's ID, and makes nothing.
func CheckID(dir string) error {
	file := filepath.Join(dir, idFile)
	text, err := privatefile.Preview(file, dir, maxIDFile, newID)
	_, err = checkID(file, text, err)
	return err
}

// checkID returns the ID in the text of a file, which was read with err.
func checkID(file string, text []byte, err error) (string, error) {
	id := strings.TrimSpace(string(text))
	if err == nil && !validID.MatchString(id) {
		err = fmt.Errorf("%s is no ID of a manager", file)
	}
	if err != nil {
		return "", fmt.Errorf("the manager's ID: %w", err)
	}
	return id, nil
}

// ID returns the ID of this manager.
func (c *Member) ID() string { return c.id }

// Run renews the lease, and sees to it that this manager has its share of the VMs, until ctx ends.
func (c *Member) Run(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Lease / 6)
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
			c.fence("the manager's lease could not be renewed")
			continue
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limit := time.Now().Add(c.cfg.Lease / 3)
		if c.life != "" && c.until.Before(limit) {
			limit = c.until
		}
		once, cancel := context.WithDeadline(ctx, limit)
		failed, err := "cannot renew the manager's lease", c.renew(once)
		if err == nil {
			end.Reset(time.Until(c.until))
			failed, err = "cannot see what other managers do", c.watch(once)
		}
		switch {
		case err == nil:
			c.balance(once)
			c.forget(once) // not at Join: VMs that come and go are not in the inventory yet
			c.cfg.Renewed(once)
		case ctx.Err() == nil:
			c.cfg.Logger.Warn(failed, "error", err)
		}
		cancel()
	}
}

// watch opens the watches of claims and leases that are not open. The library closes one that it cannot reopen after
// a break of the connection.
func (c *Member) watch(ctx context.Context) error {
	for bucket, watch := range map[jetstream.KeyValue]*jetstream.KeyWatcher{
		c.cfg.Store.Fleet: &c.claimed, c.managers: &c.leased,
	} {
		if *watch != nil {
			continue
		}
		opened, err := bucket.WatchAll(c.watches) //nolint:contextcheck // it lasts as long as the manager
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
func (c *Member) renew(ctx context.Context) error {
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
			c.fence("the manager's lease has ended")
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
func (c *Member) leaseIs(life string, revision uint64, sent time.Time) {
	begins := c.life != life
	c.life, c.revision, c.until = life, revision, sent.Add(c.cfg.Lease*2/3)
	if begins {
		c.beginTerm()
	}
}

// fence gives up all VMs at once.
func (c *Member) fence(why string) {
	if c.life == "" {
		return
	}
	c.life = ""
	c.endTerm()
	held := c.Held()
	c.cfg.Logger.Error("the manager leaves its VMs", "because", why, "instances", len(held))
	for _, id := range held {
		c.yield(id)
	}
}

// Held returns the IDs of the VMs that this manager has, in their order.
func (c *Member) Held() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.held))
}

// yield stops the use of a VM. Builds there go on without this manager.
func (c *Member) yield(id string) (revision uint64) {
	c.cfg.Provider.Yield(id, c.cfg.Left)
	c.mu.Lock()
	defer c.mu.Unlock()
	revision = c.held[id]
	delete(c.held, id)
	return revision
}

// note notes a change of a claim or a lease, or passes another one on.
func (c *Member) note(entry jetstream.KeyValueEntry) {
	switch {
	case entry == nil:
		return
	case entry.Bucket() == managersBucket:
		c.noteLease(entry)
	case strings.HasPrefix(entry.Key(), claimPrefix):
		c.noteClaim(entry)
	default:
		c.cfg.Changed(entry)
	}
}

// noteLease notes a change of a manager's lease, or passes the mark of a build that was canceled on.
func (c *Member) noteLease(entry jetstream.KeyValueEntry) {
	if build, ok := strings.CutPrefix(entry.Key(), cancelPrefix); ok {
		c.cfg.Canceled(build)
		return
	}
	var sign lifeSign
	if entry.Operation() == jetstream.KeyValuePut && json.Unmarshal(entry.Value(), &sign) != nil {
		return
	}
	if entry.Key() != c.id {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.peers[entry.Key()] = neighbour{sign.Life, time.Now()}
	}
}

// noteClaim notes a change of a claim.
func (c *Member) noteClaim(entry jetstream.KeyValueEntry) {
	var now claim
	if entry.Operation() != jetstream.KeyValuePut {
		id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(entry.Key(), claimPrefix))
		if err != nil {
			return
		}
		now.Instance, now.removed = string(id), time.Now()
	} else if json.Unmarshal(entry.Value(), &now) != nil || now.Instance == "" {
		return
	}
	now.revision = entry.Revision()
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.claims[now.Instance]; before.revision < now.revision {
		c.claims[now.Instance] = now
	}
}

// isDeadLocked reports whether a manager seems to be dead. mu is held.
func (c *Member) isDeadLocked(manager string) bool {
	p, known := c.peers[manager]
	if !known { // its lease may have ended before this manager began to watch
		c.peers[manager] = neighbour{life: "unknown", seen: time.Now()}
		return false
	}
	return p.life == "" || time.Since(p.seen) > c.cfg.Lease+c.cfg.Lease/4
}

// Others returns how many other managers live.
func (c *Member) Others() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aliveLocked() - 1
}

// TellCancel tells all managers by a mark that a build was canceled. One that cannot reach NATS learns of it later: if
// that takes longer than the mark lasts, its lease has ended, and the build is another's.
func (c *Member) TellCancel(ctx context.Context, build string) error {
	if _, err := c.managers.Put(ctx, cancelPrefix+build, nil); err != nil {
		return fmt.Errorf("tell the manager of the build: %w", err)
	}
	return nil
}

// aliveLocked counts the managers. mu is held.
func (c *Member) aliveLocked() int {
	n := 1
	for id := range c.peers {
		if id != c.id && !c.isDeadLocked(id) {
			n++
		}
	}
	return n
}
