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

// addJump adds a jump host to all. If its ID is already there, it must be the same host.
func addJump(all map[string]*host, j *Instance) error {
	there, h := all[j.ID], newHost(j, false)
	switch {
	case j.ID == "":
		return errors.New("a jump host has no ID")
	case there == nil && j.Addr == "":
		return fmt.Errorf("jump host %s has no address and is no instance", j.ID)
	case there == nil:
		if err := j.checkLogin(); err != nil {
			return fmt.Errorf("jump host %s: %w", j.ID, err)
		}
		all[j.ID] = h
	case j.Addr == "": // only names an instance
	case there.addr != h.addr || there.ssh.User != h.ssh.User || there.via != h.via:
		return fmt.Errorf("jump host %s is %s@%s and also %s@%s, or reached in two ways: give each an ID of its own",
			j.ID, there.ssh.User, there.addr, h.ssh.User, h.addr)
	}
	return nil
}

// ShareJumpHosts returns the instances with a change: a jump host that is itself one of the instances (the same
// account at the same address, reached in the same way) is replaced by that instance's ID, so that they share a
// connection. It does not change its argument.
func ShareJumpHosts(instances []Instance) []Instance {
	all := slices.Clone(instances)
	byID, byWay := map[string]*Instance{}, map[string]string{} // the latter maps to IDs
	for i := range instances {
		byID[instances[i].ID] = &instances[i]
	}
	for _, in := range slices.Backward(instances) {
		byWay[wayOf(&in, byID)] = in.ID // of the first, if several are the same
	}
	for i := range all {
		at := &all[i].Jump
		for hops := 0; *at != nil && (*at).Addr != "" && hops <= maxHops; hops++ {
			if id, ok := byWay[wayOf(*at, byID)]; ok {
				*at = &Instance{ID: id}
				break
			}
			other := **at
			*at = &other
			at = &other.Jump
		}
	}
	return all
}

// wayOf returns a text that identifies a login and its jump hosts. The Group refuses too many jump hosts.
func wayOf(in *Instance, byID map[string]*Instance) string {
	text := ""
	for hops := 0; in != nil && hops <= maxHops; hops++ {
		if named := byID[in.ID]; in.Addr == "" && named != nil {
			in = named
		}
		if in.Addr == "" {
			return text + in.ID
		}
		text += in.SSH.User + "@" + in.Addr + " "
		in = in.Jump
	}
	return text
}
