package instance

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/mux"
)

// Instance is a VM.
type Instance struct {
	// ID names the machine, uniquely in the group. A machine that is built anew at the same address is
	// another one. Required.
	ID string
	// Addr is host:port of its sshd. Required.
	Addr string
	// SSH says how to log in and which host keys to expect. Required. Its MachineID is this ID.
	SSH mux.Config
	// Jump is the host to go through, nil if there is none.
	Jump *JumpHost
	// Capacity is how many builds it takes at once (CapacityPerInstance). If zero, 1.
	Capacity int
	// MaxUses is how many builds it takes in all (MaxUseCount). If zero, any number.
	MaxUses int
	// Labels are for those who look at it. They mean nothing here.
	Labels map[string]string
	// Runner is the step runner's command there; see connector.Config. If empty, connector.DefaultRunner or
	// another that is found.
	Runner []string
	// TempDir is its directory for temporary files. If empty, /tmp.
	TempDir string
	// OS is its operating system, as Go calls it (GOOS). If empty, linux. The VM's end needs Linux: on
	// another system nothing is run, and native steps are not among the features.
	OS string
	// Revision tells one way to log in from another: where it differs from that of the instance of this ID in
	// the set before, the connection is replaced.
	Revision string
}

// linux returns an error unless the instance runs Linux.
func (in *Instance) linux() error {
	if in.OS != "" && in.OS != "linux" {
		return fmt.Errorf("instance %s runs %s: only Linux can run steps, scripts and commands", in.ID, in.OS)
	}
	return nil
}

// Group is the instances with their slots. Which instances those are may change: Update says so, or a
// [Source]. The zero value has none yet. A Group belongs to one Provider. It is safe for concurrent use.
type Group struct {
	mu       sync.Mutex       // guards the following and what machines and slots say it guards
	machines []*machine       // in the order of the newest set, then those that left it and still have builds
	hosts    map[string]*host // by ID: the instances, and the hosts on the way to them
	stale    bool             // hosts may have some that are not needed any more
	waiters  list.List        // of *waiter, oldest first
	choosy   int              // waiters that do not take every machine
	sources  int              // that follow the group, and may bring more instances
	byHand   bool             // instances were added or removed one by one, and more may be
	wake     *time.Timer

	retire func(id string, cause error) // closes a connection that has no builds; nil without a Provider
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

// Update makes instances the whole set. One that is new takes builds at once. One that is missing takes no
// new ones; when those it has have ended its connection is closed and it is forgotten, unless others are
// reached through it. One that is to be reached or used in another way than before, or through a host of which
// that is so, gets a new connection for its next build. When Update returns an error, of instances that make no
// sense or jump hosts that form a loop, nothing has changed.
//
// What was learned of the host keys of those that are missing is kept; see [Provider.Remove].
func (g *Group) Update(instances []Instance) error {
	return g.change(false, func([]Instance) ([]Instance, error) { return slices.Clone(instances), nil })
}

// change makes what edit makes of the set the whole set.
func (g *Group) change(byHand bool, edit func([]Instance) ([]Instance, error)) error {
	g.mu.Lock()
	hosts := map[string]*host{}
	set, err := edit(g.setLocked())
	if err == nil {
		err = check(set)
	}
	if err == nil {
		hosts, err = hostsOf(set)
	}
	if err != nil {
		g.mu.Unlock()
		return err
	}
	g.byHand = g.byHand || byHand
	changed := g.replaceLocked(set, hosts)
	retire := g.retire
	g.unlock()
	for id := range changed {
		if retire != nil {
			retire(id, errChanged)
		}
	}
	return nil
}

// replaceLocked makes instances, which are reached as hosts say, the set. It returns the IDs of those whose
// connections are to be others.
func (g *Group) replaceLocked(instances []Instance, hosts map[string]*host) (changed map[string]bool) {
	changed = g.takeOverLocked(hosts)
	left := map[string]*machine{}
	for _, m := range g.machines {
		left[m.member.ID] = m
	}
	set := make([]*machine, 0, len(instances))
	for _, in := range instances {
		m := left[in.ID]
		delete(left, in.ID)
		if m == nil {
			m = newMachine(in, hosts[in.ID])
		} else if m.configure(in, hosts[in.ID]) {
			changed[in.ID] = true
		}
		set = append(set, m)
	}
	for _, m := range g.machines {
		if left[m.member.ID] != nil {
			m.removed = true
			if h := hosts[m.member.ID]; h != nil {
				m.host = h
			}
			set = append(set, m)
		}
	}
	g.machines = set
	return changed
}

// add adds an instance to the set.
func (g *Group) add(in Instance) error {
	return g.change(true, func(set []Instance) ([]Instance, error) { return append(set, in), nil })
}

// remove takes an instance out of the set that is no more: its builds do not reach it again. It returns what
// the instance was, and whether others are reached through it all the same.
func (g *Group) remove(id string) (was Instance, needed bool, err error) {
	err = g.change(true, func(set []Instance) ([]Instance, error) {
		m := g.machineLocked(id)
		if m == nil || m.removed {
			return nil, &UnknownError{ID: id}
		}
		was = m.member.Instance
		left := slices.DeleteFunc(set, func(in Instance) bool { return in.ID == id })
		hosts, err := hostsOf(left)
		if err != nil {
			return nil, fmt.Errorf("remove instance %s: %w", id, err)
		}
		m.gone, needed = true, hosts[id] != nil
		return left, nil
	})
	return was, needed, err
}

// check says what is wrong with a set, and fills in the defaults.
func check(instances []Instance) error {
	seen := map[string]bool{}
	for i := range instances {
		in := &instances[i]
		switch {
		case in.ID == "":
			return errors.New("instance: an instance has no ID")
		case seen[in.ID]:
			return fmt.Errorf("instance %s: there are two of this ID", in.ID)
		case in.Addr == "":
			return fmt.Errorf("instance %s: no address", in.ID)
		case in.Capacity < 0:
			return fmt.Errorf("instance %s: capacity %d", in.ID, in.Capacity)
		case in.MaxUses < 0:
			return fmt.Errorf("instance %s: %d uses at most", in.ID, in.MaxUses)
		case in.Capacity == 0:
			in.Capacity = 1
		}
		seen[in.ID] = true
	}
	return nil
}

// provide says how connections are closed that have no builds any more.
func (g *Group) provide(retire func(id string, cause error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retire = retire
}

// Instances returns the set as it is now.
func (g *Group) Instances() []Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setLocked()
}

func (g *Group) setLocked() []Instance {
	var all []Instance
	for _, m := range g.machines {
		if !m.removed {
			all = append(all, m.member.Instance)
		}
	}
	return all
}

// Drain lets an instance take no new builds. Its connection is closed when those it has have ended, unless
// others are reached through it. Draining one that drains changes nothing. The error says that there is no such
// instance.
func (g *Group) Drain(id string) error { return g.setDrained(id, true) }

// Undrain undoes Drain.
func (g *Group) Undrain(id string) error { return g.setDrained(id, false) }

func (g *Group) setDrained(id string, drained bool) error {
	g.mu.Lock()
	defer g.unlock()
	m := g.machineLocked(id)
	if m == nil || m.removed {
		return &UnknownError{ID: id}
	}
	m.drained = drained
	return nil
}

// acquire takes a slot for a build on the instance that has the most free, but on none that is one of the hosts
// it has tried or is reached through one, or waits for one behind those who came first. It fails when no
// instance will ever have one as things are. The caller calls release or giveBack.
func (g *Group) acquire(ctx context.Context, build string, tried ...string) (*slot, error) {
	w := &waiter{build: build, tried: tried, served: make(chan served, 1)}
	g.mu.Lock()
	place := g.waiters.PushBack(w)
	if len(tried) > 0 {
		g.choosy++
	}
	g.unlock()
	select {
	case got := <-w.served:
		return got.slot, got.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	select {
	case got := <-w.served: // in the meantime
		g.mu.Unlock()
		if got.slot != nil {
			got.slot.giveBack()
		}
	default:
		g.leaveLocked(place)
		g.unlock()
	}
	return nil, fmt.Errorf("wait for a free slot on an instance: %w", ctx.Err())
}

// putAside notes that an instance could not be reached: it gets no builds for a while.
func (g *Group) putAside(s *slot, err error) {
	g.mu.Lock()
	if s.member.vm == s.machine.member.vm { // else it is to be reached in another way by now
		s.machine.setAside(err, time.Now())
	}
	g.unlock()
}

// reached notes that an instance can be.
func (g *Group) reached(s *slot) {
	g.mu.Lock()
	s.machine.recovered()
	g.unlock()
}

// lost notes that an instance's connection has died. It may be gone: until it was reached again it gets one
// build at a time, and only if no other has room.
func (g *Group) lost(id string, cause error) {
	g.mu.Lock()
	if m := g.machineLocked(id); m != nil && m.failures == 0 {
		m.failures, m.reason = 1, cause
	}
	g.unlock()
}

// connected notes a new connection to the host of this ID.
func (g *Group) connected(id string, conn *mux.Conn) {
	g.mu.Lock()
	if h := g.hosts[id]; h != nil {
		h.connections++
		h.conn = conn
	}
	if m := g.machineLocked(id); m != nil {
		m.recovered()
	}
	g.unlock()
}

// host returns the host of this ID as it is configured now, nil if there is none.
func (g *Group) host(id string) *host {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hosts[id]
}

// allLinux reports whether all instances run Linux.
func (g *Group) allLinux() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.ContainsFunc(g.machines, func(m *machine) bool { return !m.removed && m.member.linux() != nil })
}

// hasOther reports whether there is an instance that might take a build that has tried those hosts.
func (g *Group) hasOther(tried []string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(g.machines, func(m *machine) bool {
		return !m.leadsOver(tried) && m.takes() && !m.hopeless(now)
	})
}

func (g *Group) machineLocked(id string) *machine {
	for _, m := range g.machines {
		if m.member.ID == id {
			return m
		}
	}
	return nil
}
