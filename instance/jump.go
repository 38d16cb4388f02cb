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
		way := s.way(&instances[i], 0)
		if _, twice := s.byWay[way]; !twice {
			s.byWay[way] = instances[i].ID
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
func (s *sharing) way(in *Instance, hops int) string {
	text, jump := in.SSH.User+"@"+in.Addr, in.Jump
	if jump == nil || hops > maxHops {
		return text
	}
	if named := s.byID[jump.ID]; jump.Addr == "" && named != nil {
		jump = named
	}
	if jump.Addr == "" {
		return text + " " + jump.ID
	}
	return text + " " + s.way(jump, hops+1)
}

// shared returns the jump host j with the instances on the way named by their IDs.
func (s *sharing) shared(j *Instance, hops int) *Instance {
	if j == nil || j.Addr == "" || hops > maxHops {
		return j
	}
	if id, ok := s.byWay[s.way(j, 0)]; ok {
		return &Instance{ID: id}
	}
	other := *j
	other.Jump = s.shared(j.Jump, hops+1)
	return &other
}
