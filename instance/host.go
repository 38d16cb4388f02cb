package instance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/mux"
)

// host is a machine that is dialed: an instance, or one on the way. What it says of the way there is never
// changed: a Group gets another host instead.
type host struct {
	id, addr string
	ssh      mux.Config
	revision string
	via      string // ID of the host it is reached through, empty if none
	instance bool
	depth    int      // hosts on the way to it
	path     []string // their IDs, its own first
	way      string   // differs where it is to be reached in another way

	// guarded by Group.mu
	behind      int       // hosts that are reached through it
	connections int       // made so far
	conn        *mux.Conn // the newest; for its Stat only
}

// connStat returns the newest connection's Stat. Callers hold Group.mu.
func (h *host) connStat() mux.Stat {
	if h.conn == nil {
		return mux.Stat{}
	}
	return h.conn.Stat()
}

// locate follows the way to h, and notes it.
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
	h.depth, h.path, h.way = len(path)-1, path, way
	return nil
}

func (h *host) login() string { return fmt.Sprintf("%q %q %q", h.addr, h.ssh.User, h.revision) }

// takeOverLocked makes hosts those of the group. Of the hosts before it keeps the counts and, for the builds
// of machines that left, those that are missing now. It returns the IDs of those that are reached in another
// way.
func (g *Group) takeOverLocked(hosts map[string]*host) (changed map[string]bool) {
	changed = map[string]bool{}
	var kept []*host
	for id, old := range g.hosts {
		h := hosts[id]
		if h == nil {
			h = &host{id: id, addr: old.addr, ssh: old.ssh, revision: old.revision, via: old.via, instance: old.instance}
			hosts[id] = h
			kept = append(kept, h)
		}
		h.connections, h.conn = old.connections, old.conn
	}
	for _, h := range kept {
		if h.locate(hosts) != nil { // the way has become too long
			defer delete(hosts, h.id)
		}
	}
	for id, old := range g.hosts {
		if h := hosts[id]; h.way != old.way {
			changed[id] = true
		}
	}
	g.hosts, g.stale = hosts, true
	return changed
}

// forgetLocked drops the hosts that no machine needs any more, and returns them.
func (g *Group) forgetLocked() []outHost {
	if !g.stale {
		return nil
	}
	g.stale = false
	needed := map[string]bool{}
	for _, m := range g.machines {
		if m.gone {
			continue
		}
		for h := g.hosts[m.member.ID]; h != nil && !needed[h.id]; h = g.hosts[h.via] {
			needed[h.id] = true
		}
	}
	var out []outHost
	for id, h := range g.hosts {
		h.behind = 0
		if needed[id] {
			continue
		}
		delete(g.hosts, id)
		cause := errNotNeeded
		if h.instance {
			cause = outError(Removed)
		}
		out = append(out, outHost{id, cause})
	}
	for _, h := range g.hosts {
		if h.via != "" {
			g.hosts[h.via].behind++
		}
	}
	return out
}
