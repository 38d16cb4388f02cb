package instance

import (
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
	// SSH says how to log in and which host keys to expect. Required.
	SSH mux.Config
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

// Group is a fixed set of instances with their slots. It is safe for concurrent use.
type Group struct {
	mu      sync.Mutex // guards the following
	members []*member
	waiters list.List // of chan *member, oldest first
}

// member is an instance with what belongs to it for as long as it is in the group.
type member struct {
	Instance
	vm connector.VM

	// guarded by Group.mu
	used        int       // slots taken
	connections int       // made so far
	conn        *mux.Conn // the newest; for its Stat only
}

// NewGroup checks the instances and makes a group of them.
func NewGroup(instances ...Instance) (*Group, error) {
	if len(instances) == 0 {
		return nil, errors.New("instance: a group needs at least one instance")
	}
	g := &Group{}
	seen := map[string]bool{}
	for _, in := range instances {
		switch {
		case in.ID == "":
			return nil, errors.New("instance: an instance has no ID")
		case seen[in.ID]:
			return nil, fmt.Errorf("instance %s: there are two of this ID", in.ID)
		case in.Addr == "":
			return nil, fmt.Errorf("instance %s: no address", in.ID)
		case in.Capacity < 0:
			return nil, fmt.Errorf("instance %s: capacity %d", in.ID, in.Capacity)
		case in.Capacity == 0:
			in.Capacity = 1
		}
		seen[in.ID] = true
		g.members = append(g.members, &member{Instance: in})
	}
	return g, nil
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
		if first := g.waiters.Front(); first != nil {
			g.waiters.Remove(first)
			first.Value.(chan *member) <- s.member // has room for one
			return
		}
		s.member.used--
	})
}

// connected notes a new connection to m.
func (g *Group) connected(m *member, conn *mux.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.connections++
	m.conn = conn
}

func (g *Group) stat() []VMStat {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]VMStat, len(g.members))
	for i, m := range g.members {
		all[i] = VMStat{ID: m.ID, Used: m.used, Capacity: m.Capacity, Connections: m.connections, Route: m.vm.Choice(), Program: m.vm.Program()}
		if m.conn != nil {
			all[i].Conn = m.conn.Stat()
		}
	}
	return all
}

// allLinux reports whether all instances run Linux.
func (g *Group) allLinux() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.ContainsFunc(g.members, func(m *member) bool { return m.linux() != nil })
}

// member returns the member of this ID, nil if there is none.
func (g *Group) member(id string) *member {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.ID == id {
			return m
		}
	}
	return nil
}
