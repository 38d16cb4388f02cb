package instance

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/stepmux/stepmux/connector"
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
	// Runner is the step runner's command there; see connector.Config. If empty, connector.DefaultRunner or
	// another that is found.
	Runner []string
	// TempDir is its directory for temporary files. If empty, /tmp.
	TempDir string
	// OS is its operating system, as Go calls it (GOOS). If empty, linux. The VM's end needs Linux: on
	// another system nothing is run, and native steps are not among the features.
	OS string
}

// linux returns an error unless the instance runs Linux.
func (in *Instance) linux() error {
	if in.OS != "" && in.OS != "linux" {
		return fmt.Errorf("instance %s runs %s: only Linux can run steps, scripts and commands", in.ID, in.OS)
	}
	return nil
}

// Group is a set of instances with their slots. It is safe for concurrent use.
type Group struct {
	mu      sync.Mutex // guards the following
	members []*member
	hosts   map[string]*host // by ID: the instances, and the hosts on the way to them
	waiters list.List        // of chan *member, oldest first
}

// member is an instance with what belongs to it for as long as it is in the group.
type member struct {
	Instance
	vm   connector.VM
	host *host

	// guarded by Group.mu
	used int  // slots taken
	gone bool // no longer in the group
}

// NewGroup checks the instances and makes a group of them.
func NewGroup(instances ...Instance) (*Group, error) {
	if len(instances) == 0 {
		return nil, errors.New("instance: a group needs at least one instance")
	}
	g := &Group{hosts: map[string]*host{}}
	if err := g.add(instances...); err != nil {
		return nil, err
	}
	return g, nil
}

// add checks instances and adds all of them, or none.
func (g *Group) add(instances ...Instance) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	members := slices.Clone(g.members)
	seen := map[string]bool{}
	for _, m := range members {
		seen[m.ID] = true
	}
	for _, in := range instances {
		switch {
		case in.ID == "":
			return errors.New("instance: an instance has no ID")
		case seen[in.ID]:
			return fmt.Errorf("instance %s: there are two of this ID", in.ID)
		case in.Addr == "":
			return fmt.Errorf("instance %s: no address", in.ID)
		case in.Capacity < 0:
			return fmt.Errorf("instance %s: capacity %d", in.ID, in.Capacity)
		case in.Capacity == 0:
			in.Capacity = 1
		}
		seen[in.ID] = true
		members = append(members, &member{Instance: in})
	}
	hosts, err := hostsOf(members, g.hosts)
	if err != nil {
		return err
	}
	for _, m := range members {
		m.host = hosts[m.ID]
	}
	g.members, g.hosts = members, hosts
	for m := g.freest(); m != nil && g.waiters.Len() > 0; m = g.freest() {
		m.used++
		g.waiters.Remove(g.waiters.Front()).(chan *member) <- m // has room for one
	}
	return nil
}

// remove takes an instance out of the group. The builds on it keep their slots.
func (g *Group) remove(id string) (*member, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.members, func(m *member) bool { return m.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("instance %s is not in the group", id)
	}
	m := g.members[i]
	left := slices.Delete(slices.Clone(g.members), i, i+1)
	hosts, err := hostsOf(left, g.hosts)
	if err != nil {
		return nil, fmt.Errorf("remove instance %s: %w", id, err)
	}
	m.gone = true
	g.members, g.hosts = left, hosts
	return m, nil
}

// acquire takes a slot on the instance that has the most free, or waits for one behind those who
// came first. The caller calls release.
func (g *Group) acquire(ctx context.Context) (*slot, error) {
	g.mu.Lock()
	if m := g.freest(); m != nil && g.waiters.Len() == 0 {
		m.used++
		g.mu.Unlock()
		return &slot{group: g, member: m}, nil
	}
	granted := make(chan *member, 1)
	place := g.waiters.PushBack(granted)
	g.mu.Unlock()
	select {
	case m := <-granted:
		return &slot{group: g, member: m}, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	select {
	case m := <-granted: // in the meantime
		g.mu.Unlock()
		(&slot{group: g, member: m}).release()
	default:
		g.waiters.Remove(place)
		g.mu.Unlock()
	}
	return nil, fmt.Errorf("wait for a free slot on an instance: %w", ctx.Err())
}

// freest returns the member with the most free slots, nil if none has any. Callers hold mu.
func (g *Group) freest() *member {
	var best *member
	for _, m := range g.members {
		if free := m.Capacity - m.used; free > 0 && (best == nil || free > best.Capacity-best.used) {
			best = m
		}
	}
	return best
}

// slot is one build's place on an instance.
type slot struct {
	group  *Group
	member *member
	once   sync.Once
}

// release gives the slot back; whoever waits longest gets it. Idempotent.
func (s *slot) release() {
	s.once.Do(func() {
		g := s.group
		g.mu.Lock()
		defer g.mu.Unlock()
		if first := g.waiters.Front(); first != nil && !s.member.gone {
			g.waiters.Remove(first)
			first.Value.(chan *member) <- s.member // has room for one
			return
		}
		s.member.used--
	})
}

// connected notes a new connection to h.
func (g *Group) connected(h *host, conn *mux.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.connections++
	h.conn = conn
}

func (g *Group) stat() Stat {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Stat{Instances: make([]VMStat, len(g.members))}
	instances := map[*host]bool{}
	for i, m := range g.members {
		instances[m.host] = true
		s.Instances[i] = VMStat{
			ID: m.ID, Used: m.used, Capacity: m.Capacity,
			Connections: m.host.connections, Conn: m.host.connStat(), Route: m.vm.Choice(), Program: m.vm.Program(),
		}
	}
	for _, h := range g.hosts {
		if !instances[h] {
			s.JumpHosts = append(s.JumpHosts, JumpStat{ID: h.id, Connections: h.connections, Conn: h.connStat()})
		}
	}
	slices.SortFunc(s.JumpHosts, func(a, b JumpStat) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// allLinux reports whether all instances run Linux.
func (g *Group) allLinux() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.ContainsFunc(g.members, func(m *member) bool { return m.linux() != nil })
}

// host returns the host of this ID, nil if there is none.
func (g *Group) host(id string) *host {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hosts[id]
}
