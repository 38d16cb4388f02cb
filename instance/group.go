package instance

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Instance is a VM, or a Kubernetes cluster.
type Instance struct {
	// ID identifies the VM, uniquely in the group. A VM that is rebuilt at the same address is another VM and needs
	// another ID. Required.
	ID string
	// Addr is host:port of its sshd. Required for a VM.
	Addr string
	// SSH is the login and the host-key policy. Required for a VM. Its MachineID is set to ID.
	SSH mux.Config
	// Cluster is where builds in pods run: the instance is a cluster, not a VM. Then only ID, Capacity, MaxUses, Labels,
	// Linger and Limits are used as well.
	Cluster *kubernetes.Cluster
	// Jump is the jump host (bastion) through which the instance is reached. It may be nil, and may have a Jump
	// itself. Instances whose Jump has the same ID share one connection to it, which lives as long as one of theirs.
	// Of a Jump only ID, Addr, SSH, Jump and Revision are used. If the jump host is itself an instance of the group,
	// its ID is enough: builds on it and behind it then share its connection.
	Jump *Instance
	// Capacity is how many builds it takes at once (CapacityPerInstance). If zero, 1.
	Capacity int
	// MaxUses is how many builds it takes in all (MaxUseCount), counted since this Group has it. If zero, any number.
	MaxUses int
	// Labels are matched by Build.Labels, and appear in Stat.
	Labels map[string]string
	// Runner is the step runner's command there; see connector.Config. If empty, connector.DefaultRunner, or one of
	// GitLab's step runners if that is missing.
	Runner []string
	// Options say how it runs builds. Linger is for builds whose own Linger is nil. Limits of a build's Place take
	// precedence.
	vmconfig.Options
	// Health has its limits; see Provider.Examine. If zero, it is not examined.
	Health healthcheck.Limits
	// OS is its operating system, as Go names it (GOOS). If empty, linux. The VM's end needs Linux: on another system
	// nothing can run, and native steps are not among the features.
	OS string
	// Revision changes with the login. If it differs from the Revision that this ID had before, the connection is
	// replaced.
	Revision string
}

// linux returns an error unless the instance runs Linux.
func (in *Instance) linux() error {
	if in.OS != "" && in.OS != "linux" {
		return fmt.Errorf("instance %s runs %s: only Linux can run steps, scripts and commands", in.ID, in.OS)
	}
	return nil
}

// Group is the instances with their slots. Update and Follow change the set. The zero value is a group without
// instances. A Group belongs to one Provider. It is safe for concurrent use.
type Group struct {
	mu          sync.Mutex        // guards the following, and the fields of entries, hosts and slots that name it
	entries     []*entry          // in the order of the newest set, then those that left it and still have builds
	byID        map[string]*entry // the same entries
	hosts       map[string]*host  // by ID: the instances, and the jump hosts on the way to them
	stale       bool              // hosts may contain some that are no longer needed
	waiters     list.List         // of *waiter, oldest first
	parties     map[string]*party // of the parties, by name
	passed      float64           // the latest turn, when it was served
	shares      map[string]int    // of the parties
	picky       int               // number of waiters with requirements
	sources     int               // calls of Follow and Expect: more instances may come
	byHand      bool              // instances were added or removed one by one, so more may come
	wake        *time.Timer
	connectWait time.Duration   // see Config.ConnectWait
	awaited     map[string]int  // how many builds wait to reconnect to a host, or through it
	drained     map[string]bool // the IDs of drained instances, even if they have left the set
	shared      bool            // other groups share its instances; see Share

	changed    []retirement                 // hosts that are now reached in another way; unlock passes them to retire
	retire     func(id string, cause error) // closes a connection that has no builds; nil without a Provider
	tellHealth func(id string, why error)   // see OnHealth; may be nil
}

// NewGroup checks the instances and makes a group of them.
func NewGroup(instances ...Instance) (*Group, error) {
	if len(instances) == 0 {
		return nil, errors.New("instance: a group needs at least one instance")
	}
	g := &Group{}
	if err := g.Update(instances); err != nil {
		return nil, err
	}
	return g, nil
}

// Update replaces the set by instances. A new instance takes builds at once. A missing one takes no new builds; when
// its last build has ended, its connection is closed and it is forgotten, unless others are reached through it. If
// the way to an instance or its use has changed, its next build gets a new connection, and so do those of the
// instances behind it. If Update returns an error, because an instance is invalid or jump hosts form a loop, nothing
// has changed.
//
// Host keys that were learned for a missing instance are kept; see [Provider.Remove].
func (g *Group) Update(instances []Instance) error { return g.UpdatePart("", instances) }

// change replaces a part of the set by the result of edit.
func (g *Group) change(byHand bool, part string, edit func([]Instance) ([]Instance, error)) error {
	g.mu.Lock()
	defer g.unlock()
	var hosts map[string]*host
	var set []Instance
	mine, err := edit(g.partLocked(func(of string) bool { return of == part }))
	if err == nil {
		before := g.partLocked(func(of string) bool { return of < part })
		after := g.partLocked(func(of string) bool { return of > part })
		set = slices.Concat(before, mine, after)
		err = check(set)
	}
	if err == nil {
		hosts, err = hostsOf(set)
	}
	if err != nil {
		return err
	}
	g.byHand = g.byHand || byHand
	changed := g.takeOverLocked(hosts)
	parts := make(map[string]string, len(set))
	for _, e := range g.entries {
		if !e.removed {
			parts[e.placement.ID] = e.part
		}
		e.removed = true
	}
	for _, in := range mine {
		parts[in.ID] = part
	}
	entries := make([]*entry, 0, len(set))
	for _, in := range set {
		e, h := g.byID[in.ID], hosts[in.ID]
		if e == nil {
			e = &entry{
				placement: &placement{in, &connector.VM{}, &docker.Daemon{}}, host: h, slots: map[*slot]struct{}{},
				elsewhere: g.shared, drained: g.drained[in.ID],
			}
		} else if e.configure(in, h) {
			changed[in.ID] = true
		}
		e.part = parts[in.ID]
		entries = append(entries, e)
	}
	for _, e := range g.entries {
		if e.removed {
			e.host = cmp.Or(hosts[e.placement.ID], e.host)
			entries = append(entries, e)
		}
	}
	g.entries, g.byID = entries, make(map[string]*entry, len(entries))
	for _, e := range entries {
		g.byID[e.placement.ID] = e
	}
	for id := range changed {
		g.changed = append(g.changed, retirement{id, errChanged})
	}
	return nil
}

// add adds an instance to the set.
func (g *Group) add(in Instance) error {
	return g.change(true, "", func(set []Instance) ([]Instance, error) { return append(set, in), nil })
}

// remove takes an instance out of the set because its VM no longer exists: its builds do not reach it again. It
// returns the instance, and whether it stays as a jump host.
func (g *Group) remove(id string) (was Instance, needed bool, err error) {
	part := g.partOf(id)
	err = g.change(true, part, func(set []Instance) ([]Instance, error) {
		e := g.byID[id]
		if e == nil || e.removed || e.part != part {
			return nil, unknown(id)
		}
		was = e.placement.Instance
		is := func(in Instance) bool { return in.ID == id }
		left := slices.DeleteFunc(set, is)
		hosts, err := hostsOf(slices.DeleteFunc(g.setLocked(), is))
		if err != nil {
			return nil, fmt.Errorf("remove instance %s: %w", id, err)
		}
		e.gone, e.drained, needed = true, false, hosts[id] != nil
		delete(g.drained, id)
		return left, nil
	})
	return was, needed, err
}

// check returns an error for an invalid set, and fills in the defaults.
func check(instances []Instance) error {
	seen := map[string]bool{}
	for i := range instances {
		in := &instances[i]
		switch {
		case in.ID == "":
			return errors.New("instance: an instance has no ID")
		case seen[in.ID]:
			return fmt.Errorf("instance %s: there are two of this ID", in.ID)
		case in.Addr == "" && in.Cluster == nil:
			return fmt.Errorf("instance %s: no address", in.ID)
		case in.Capacity < 0:
			return fmt.Errorf("instance %s: capacity %d", in.ID, in.Capacity)
		case in.MaxUses < 0:
			return fmt.Errorf("instance %s: %d uses at most", in.ID, in.MaxUses)
		}
		if err := in.Check(); err != nil {
			return fmt.Errorf("instance %s: %w", in.ID, err)
		}
		if in.Cluster == nil {
			if err := in.checkLogin(); err != nil {
				return fmt.Errorf("instance %s: %w", in.ID, err)
			}
		}
		in.Capacity = max(in.Capacity, 1)
		seen[in.ID] = true
	}
	return nil
}

// checkLogin returns an error if no attempt to connect to a VM or jump host could succeed.
func (in *Instance) checkLogin() error {
	if _, port, err := net.SplitHostPort(in.Addr); in.SSH.DialNet == nil && (err != nil || port == "") {
		return fmt.Errorf("address %q is not host:port", in.Addr)
	}
	return in.SSH.Check()
}

// provide sets the function that closes a connection without builds, and Config.ConnectWait.
func (g *Group) provide(retire func(id string, cause error), connectWait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retire, g.connectWait = retire, connectWait
}

// OnHealth sets what is called when an instance or jump host becomes suspect or quarantined, with the reason, and with
// nil when it is that no more. The call must return at once, and must not call the Group. Nil: nothing is called.
func (g *Group) OnHealth(tell func(id string, why error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tellHealth = tell
}

// Instances returns the current set.
func (g *Group) Instances() []Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setLocked()
}

// Waiting returns the IDs of the builds that wait for a slot, in the order of the queue.
func (g *Group) Waiting() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waitingLocked()
}

// WaitingFor returns the labels that the builds without a slot need, by their IDs.
func (g *Group) WaitingFor() map[string]map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]map[string]string, g.waiters.Len())
	for e := g.waiters.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); w.build != "" {
			all[w.build] = w.demand.labels
		}
	}
	return all
}

func (g *Group) waitingLocked() []string {
	all := make([]string, 0, g.waiters.Len())
	for e := g.waiters.Front(); e != nil; e = e.Next() {
		if build := e.Value.(*waiter).build; build != "" {
			all = append(all, build)
		}
	}
	return all
}

// Drain stops an instance from taking new builds. Its connection is closed with its last build, unless other instances
// are reached through it. It holds until Undrain, also if the instance leaves the set and comes back. Idempotent. If
// the set does not have the instance, the error wraps ErrUnknown, and Drain holds once it has.
func (g *Group) Drain(id string) error { return g.setDrained(id, true) }

// Undrain undoes Drain.
func (g *Group) Undrain(id string) error { return g.setDrained(id, false) }

func (g *Group) setDrained(id string, drained bool) error {
	g.mu.Lock()
	defer g.unlock()
	if drained {
		if g.drained == nil {
			g.drained = map[string]bool{}
		}
		g.drained[id] = true
	} else {
		delete(g.drained, id)
	}
	e := g.byID[id]
	if e != nil {
		e.drained = drained
	}
	if e == nil || e.removed {
		return unknown(id)
	}
	return nil
}

// queue puts a build into the queue for a slot, behind earlier callers, or at its head if the build has had a slot
// already. The build gets a slot on the instance with the most free slots, of those that meet its demand. The caller
// calls await.
func (g *Group) queue(build, party string, of demand, again bool) (place *list.Element) {
	g.mu.Lock()
	defer g.unlock()
	if of.some() {
		g.picky++
	}
	g.enterLocked(party)
	w := &waiter{build: build, party: party, demand: of, key: of.key(), served: make(chan served, 1)}
	if again {
		return g.waiters.PushFront(w)
	}
	return g.waiters.PushBack(w)
}

// await waits for the slot of a place in the queue. It fails if no instance can ever have one, unless the group is
// changed. The caller calls release or giveBack.
func (g *Group) await(ctx context.Context, place *list.Element) (*slot, error) {
	select {
	case got := <-place.Value.(*waiter).served:
		if got.slot == nil || ctx.Err() == nil {
			return got.slot, got.err
		}
		got.slot.giveBack()
	case <-ctx.Done():
		g.leave(place)
	}
	return nil, fmt.Errorf("wait for a free slot on an instance: %w", ctx.Err())
}

// leave gives up a place in the queue, and its slot if it has got one.
func (g *Group) leave(place *list.Element) {
	g.mu.Lock()
	select {
	case got := <-place.Value.(*waiter).served:
		g.mu.Unlock()
		if got.slot != nil {
			got.slot.giveBack()
		}
	default:
		g.leaveLocked(place)
		g.unlock()
	}
}

// reached records that a slot's instance was reached.
func (g *Group) reached(s *slot) {
	g.mu.Lock()
	if !s.entry.suspect() || s.entry.host.health.unfit { // mostly; see started
		g.mu.Unlock()
		return
	}
	defer g.unlock()
	g.recoveredLocked(s.entry)
}

// started records that a build was started on a slot's instance. With an err it records that the instance cannot start
// builds: until one is started there it gets one at a time, after pauses as those of failed dials, and only if no other
// instance has room. Else it would always have room, and so get all builds.
func (g *Group) started(s *slot, err error) {
	g.mu.Lock()
	h := s.entry.host.health
	if err == nil && (!h.unfit || h.unproven) { // mostly; nothing changes, so there are no slots to hand out
		g.mu.Unlock()
		return
	}
	defer g.unlock()
	if err == nil {
		g.recoveredLocked(s.entry)
		return
	}
	h.quarantine(err, time.Now())
	g.illLocked(s.entry.placement.ID, h)
}

// worked records that an instance has run a job, or its first steps, without a failure of the instance.
func (g *Group) worked(s *slot) {
	g.mu.Lock()
	h := s.entry.host.health
	if h.faults == 0 && !h.unproven { // mostly
		g.mu.Unlock()
		return
	}
	defer g.unlock()
	if h.faults = 0; h.unproven {
		g.recoveredLocked(s.entry)
	}
}

// failed records that an instance has failed a job whose step runner had started. After several in a row the instance
// is quarantined, as by started; moves means that the job goes to another instance, and quarantines it at once.
func (g *Group) failed(s *slot, err error, moves bool) {
	g.mu.Lock()
	defer g.unlock()
	h := s.entry.host.health
	if h.faults++; moves || h.faults >= maxFaults {
		h.quarantine(err, time.Now())
		h.unproven = true
		g.illLocked(s.entry.placement.ID, h)
	}
}

// isProbe reports whether the build of a slot tests whether its instance works again.
func (g *Group) isProbe(s *slot) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.entry.probe == s
}

// lost records that an instance's connection has died. The instance may be gone: until it is reached again it gets
// one build at a time, and only if no other instance has room.
func (g *Group) lost(id string, cause error) {
	g.mu.Lock()
	if e := g.byID[id]; e != nil && e.host.health.suspect == nil {
		e.host.health.suspect = cause
		g.illLocked(id, e.host.health)
	}
	g.unlock()
}

// connected records a new connection to the host with this ID.
func (g *Group) connected(id string, conn pool.Conn) {
	g.mu.Lock()
	h := g.hosts[id]
	if h != nil {
		h.connections++
		h.conn = conn
		h.health.last = nil
	}
	if h != nil && !h.health.unfit {
		faults := h.health.faults
		g.wellLocked(id, h.health)
		h.health.faults = faults
		if e := g.byID[id]; e != nil {
			e.probe = nil
		}
	}
	g.unlock()
}

// findHost returns the host with this ID in its current configuration. The error wraps ErrUnknown.
func (g *Group) findHost(id string) (*host, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.hosts[id]; h != nil {
		return h, nil
	}
	return nil, unknown(id)
}

// allLinux reports whether all instances run Linux.
func (g *Group) allLinux() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.ContainsFunc(g.entries, func(e *entry) bool { return !e.removed && e.placement.linux() != nil })
}

// hasOther reports whether an instance may take a build with this demand. If sound is set, suspect ones do not count.
func (g *Group) hasOther(of demand, sound bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(g.entries, func(e *entry) bool {
		return e.meets(of) && e.takes() && e.host.health.refused(now) == nil && (!sound || !e.suspect())
	})
}
