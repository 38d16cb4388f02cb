package instance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/mux"
)

// maxHops bounds the hosts on the way to an instance.
const maxHops = 8

// JumpHost is a machine that instances are reached through: a bastion. All that go through it share one
// connection to it, which lives as long as one of theirs.
type JumpHost struct {
	// ID names the machine. Jump hosts of the same ID are the same one; one of an instance's ID is that
	// instance, whose connection its builds and those behind it then share. Required.
	ID string
	// Addr is host:port of its sshd, as seen from what it is reached through. Required, unless it is an
	// instance.
	Addr string
	// SSH says how to log in and which host keys to expect, unless it is an instance. Its MachineID is this
	// ID.
	SSH mux.Config
	// Jump is the host to go through to this one, nil if there is none.
	Jump *JumpHost
}

// host is a machine that is dialed: an instance, or one on the way.
type host struct {
	id, addr string
	ssh      mux.Config
	via      string // ID of the host it is reached through, empty if none
	depth    int    // hosts on the way to it

	// guarded by Group.mu
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

// hostsOf returns the instances and all hosts on the way to them, by ID. Those that are in known stay the same.
func hostsOf(members []*member, known map[string]*host) (map[string]*host, error) {
	all := map[string]*host{}
	for _, m := range members {
		all[m.ID] = &host{id: m.ID, addr: m.Addr, ssh: m.SSH, via: m.Jump.id()}
	}
	for _, m := range members {
		hops := 0
		for j := m.Jump; j != nil; j = j.Jump {
			if hops++; hops > maxHops {
				return nil, fmt.Errorf("instance %s: more than %d jump hosts on the way, or a loop of them", m.ID, maxHops)
			}
			if err := addJump(all, j); err != nil {
				return nil, fmt.Errorf("instance %s: %w", m.ID, err)
			}
		}
	}
	for _, h := range all {
		depth, err := depthOf(all, h)
		if err != nil {
			return nil, fmt.Errorf("instance: %w", err)
		}
		h.depth = depth
	}
	for id, h := range all {
		if old := known[id]; old != nil && old.addr == h.addr && old.ssh.User == h.ssh.User && old.via == h.via && old.depth == h.depth {
			all[id] = old
		}
	}
	return all, nil
}

// addJump adds a jump host to all, or checks that it is the one that is there.
func addJump(all map[string]*host, j *JumpHost) error {
	there := all[j.ID]
	switch {
	case j.ID == "":
		return errors.New("a jump host has no ID")
	case there == nil && j.Addr == "":
		return fmt.Errorf("jump host %s has no address and is no instance", j.ID)
	case there == nil:
		all[j.ID] = &host{id: j.ID, addr: j.Addr, ssh: j.SSH, via: j.Jump.id()}
	case j.Addr == "": // that one
	case there.addr != j.Addr || there.ssh.User != j.SSH.User || there.via != j.Jump.id():
		return fmt.Errorf("jump host %s is %s@%s and also %s@%s, or reached in two ways: give each an ID of its own",
			j.ID, there.ssh.User, there.addr, j.SSH.User, j.Addr)
	}
	return nil
}

// id returns the ID, empty if there is no host.
func (j *JumpHost) id() string {
	if j == nil {
		return ""
	}
	return j.ID
}

// depthOf counts the hosts on the way to h.
func depthOf(all map[string]*host, h *host) (int, error) {
	path := []string{h.id}
	for h.via != "" {
		h = all[h.via]
		if loop := slices.Contains(path, h.id); loop || len(path) > maxHops {
			path = append(path, h.id)
			if loop {
				return 0, fmt.Errorf("jump hosts form a loop: %s", strings.Join(path, " -> "))
			}
			return 0, fmt.Errorf("more than %d jump hosts on the way: %s", maxHops, strings.Join(path, " -> "))
		}
		path = append(path, h.id)
	}
	return len(path) - 1, nil
}
