package instance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// host is a machine that is dialed: an instance or a jump host. The way to it never changes: if it would, the Group
// makes a new host.
type host struct {
	id, addr string
	ssh      mux.Config
	revision string
	via      string // ID of the host it is reached through; may be empty
	instance bool
	path     []string // the IDs of the hosts on the way to it, beginning with its own
	way      string   // equal for two hosts that are reached in the same way
	left     bool     // not in the newest set, though builds may still be on the way to it

	// Group.mu guards the following.
	behind      int       // number of hosts that are reached through it
	connections int       // number made so far
	conn        pool.Conn // the newest, for its Stat only
	health      *health   // shared with the host that it replaces, unless the way differs or that host had left
}

// newHost returns the host for an instance or a jump host.
func newHost(in *Instance, instance bool) *host {
	h := &host{id: in.ID, addr: in.Addr, ssh: in.SSH, revision: in.Revision, instance: instance, health: &health{}}
	if in.Jump != nil {
		h.via = in.Jump.ID
	}
	return h
}

// server identifies the server that logins to h reach.
func (h *host) server() string { return h.via + " " + h.addr }

// locate sets path and way of h.
func (h *host) locate(all map[string]*host) error {
	path := []string{h.id}
	way := h.login()
	for at := h; at.via != ""; {
		at = all[at.via]
		loop := slices.Contains(path, at.id)
		path = append(path, at.id)
		switch {
		case loop:
			return fmt.Errorf("jump hosts form a loop: %s", strings.Join(path, " -> "))
		case len(path) > maxHops+1:
			return fmt.Errorf("more than %d jump hosts on the way: %s", maxHops, strings.Join(path, " -> "))
		}
		way += " " + at.login()
	}
	h.path, h.way = path, way
	return nil
}

func (h *host) login() string { return fmt.Sprintf("%q %q %q", h.addr, h.ssh.User, h.revision) }

// takeOverLocked makes hosts the hosts of the group. It keeps the counters of the previous hosts and, for the builds of
// instances that have left, hosts that are missing now. It returns the IDs of hosts that are now reached in another
// way.
func (g *Group) takeOverLocked(hosts map[string]*host) (changed map[string]bool) {
	for id, old := range g.hosts {
		if hosts[id] == nil {
			kept := *old
			kept.left = true
			hosts[id] = &kept
		}
	}
	changed = map[string]bool{}
	for id, old := range g.hosts {
		h := hosts[id]
		if h.locate(hosts) != nil { // the way of a kept host has become too long
			defer delete(hosts, id)
		}
		h.connections, h.conn = old.connections, old.conn
		switch {
		case h.way != old.way:
			changed[id] = true
			h.health = &health{}
		case h.left || !old.left: // it has not been added again
			h.health = old.health
		}
	}
	g.hosts, g.stale = hosts, true
	return changed
}

// forgetLocked drops the hosts that the instances no longer need, and returns them.
func (g *Group) forgetLocked() []retirement {
	if !g.stale {
		return nil
	}
	g.stale = false
	needed := map[string]bool{}
	for _, e := range g.entries {
		if e.gone {
			continue
		}
		for h := g.hosts[e.placement.ID]; h != nil && !needed[h.id]; h = g.hosts[h.via] {
			needed[h.id] = true
		}
	}
	var out []retirement
	for id, h := range g.hosts {
		h.behind = 0
		if needed[id] {
			continue
		}
		delete(g.hosts, id)
		cause := errNotNeeded
		if h.instance {
			cause = outOfServiceError(Removed)
		}
		out = append(out, retirement{id, cause})
	}
	for _, h := range g.hosts {
		if h.via != "" {
			g.hosts[h.via].behind++
		}
	}
	return out
}
