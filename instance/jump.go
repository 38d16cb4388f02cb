package instance

import (
	"errors"
	"fmt"
	"slices"

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
	// Revision tells one way to log in from another, as an Instance's does, unless it is an instance.
	Revision string
}

// hostsOf returns the instances and all hosts on the way to them, by ID.
func hostsOf(instances []Instance) (map[string]*host, error) {
	all := map[string]*host{}
	for i := range instances {
		in := &instances[i]
		all[in.ID] = &host{id: in.ID, addr: in.Addr, ssh: in.SSH, revision: in.Revision, via: in.Jump.id(), instance: true}
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

// addJump adds a jump host to all, or checks that it is the one that is there.
func addJump(all map[string]*host, j *JumpHost) error {
	there := all[j.ID]
	switch {
	case j.ID == "":
		return errors.New("a jump host has no ID")
	case there == nil && j.Addr == "":
		return fmt.Errorf("jump host %s has no address and is no instance", j.ID)
	case there == nil:
		all[j.ID] = &host{id: j.ID, addr: j.Addr, ssh: j.SSH, revision: j.Revision, via: j.Jump.id()}
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

// ShareJumpHosts returns instances in which a jump host that is one of them itself, the same account of the
// same address reached in the same way, is that instance: they then share its connection. It changes none of
// those it is given.
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

// way tells one login from another. A way that is too long is for the Group to refuse.
func (s *sharing) way(addr, user string, jump *JumpHost, hops int) string {
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

func (s *sharing) shared(j *JumpHost, hops int) *JumpHost {
	if j == nil || j.Addr == "" || hops > maxHops {
		return j
	}
	if id, ok := s.byWay[s.way(j.Addr, j.SSH.User, j.Jump, 0)]; ok {
		return &JumpHost{ID: id}
	}
	other := *j
	other.Jump = s.shared(j.Jump, hops+1)
	return &other
}
