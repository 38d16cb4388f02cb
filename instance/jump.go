package instance

import (
	"errors"
	"fmt"
	"slices"
)

// maxHops bounds the jump hosts on the way to an instance.
const maxHops = 8

// hostsOf returns the instances and all jump hosts on the way to them, by ID.
func hostsOf(instances []Instance) (map[string]*host, error) {
	all := map[string]*host{}
	for i := range instances {
		all[instances[i].ID] = newHost(&instances[i], true)
	}
	for i := range instances {
		in, hops := &instances[i], 0
		for j := in.Jump; j != nil; j = j.Jump {
			if hops++; hops > maxHops {
				return nil, fmt.Errorf("instance %s: more than %d jump hosts on the way, or a loop of them", in.ID, maxHops)
			}
			if err := addJump(all, j); err != nil {
				return nil, fmt.Errorf("instance %s: %w", in.ID, err)
			}
		}
	}
	for _, h := range all {
		if err := h.locate(all); err != nil {
			return nil, fmt.Errorf("instance: %w", err)
		}
	}
	return all, nil
}

// addJump adds a jump host to all. If its ID is there already, it must be the same host.
func addJump(all map[string]*host, j *Instance) error {
	there, h := all[j.ID], newHost(j, false)
	switch {
	case j.ID == "":
		return errors.New("a jump host has no ID")
	case there == nil && j.Addr == "":
		return fmt.Errorf("jump host %s has no address and is no instance", j.ID)
	case there == nil:
		all[j.ID] = h
	case j.Addr == "": // only names it
	case there.addr != h.addr || there.ssh.User != h.ssh.User || there.via != h.via:
		return fmt.Errorf("jump host %s is %s@%s and also %s@%s, or reached in two ways: give each an ID of its own",
			j.ID, there.ssh.User, there.addr, h.ssh.User, h.addr)
	}
	return nil
}

// ShareJumpHosts returns instances in which a jump host that is one of them itself, the same account of the same
// address reached in the same way, is named by that instance's ID: they then share its connection. It does not change
// its argument.
func ShareJumpHosts(instances []Instance) []Instance {
	s := &sharing{byID: map[string]*Instance{}, byWay: map[string]string{}}
	for i := range instances {
		s.byID[instances[i].ID] = &instances[i]
	}
	for i := range instances {
		in := &instances[i]
		way := s.way(in.Addr, in.SSH.User, in.Jump, 0)
		if _, twice := s.byWay[way]; !twice {
			s.byWay[way] = in.ID
		}
	}
	all := slices.Clone(instances)
	for i := range all {
		all[i].Jump = s.shared(all[i].Jump, 0)
	}
	return all
}

// sharing finds instances among jump hosts.
type sharing struct {
	byID  map[string]*Instance
	byWay map[string]string // IDs
}

// way returns a text that is the same for the same login by the same way. The Group refuses a way that is too long.
func (s *sharing) way(addr, user string, jump *Instance, hops int) string {
	text := user + "@" + addr
	switch {
	case jump == nil || hops > maxHops:
		return text
	case jump.Addr != "":
		return text + " " + s.way(jump.Addr, jump.SSH.User, jump.Jump, hops+1)
	case s.byID[jump.ID] != nil:
		in := s.byID[jump.ID]
		return text + " " + s.way(in.Addr, in.SSH.User, in.Jump, hops+1)
	default:
		return text + " " + jump.ID
	}
}

// shared returns the jump host j with the instances on the way named by their IDs.
func (s *sharing) shared(j *Instance, hops int) *Instance {
	if j == nil || j.Addr == "" || hops > maxHops {
		return j
	}
	if id, ok := s.byWay[s.way(j.Addr, j.SSH.User, j.Jump, 0)]; ok {
		return &Instance{ID: id}
	}
	other := *j
	other.Jump = s.shared(j.Jump, hops+1)
	return &other
}
