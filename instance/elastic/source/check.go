package source

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/inventory"
)

// The bounds of a VM in a list.
const (
	maxLabels, maxLabel = 64, 256
	maxHostKeys         = 16
	maxText             = 256
)

// checkVMs checks a list of VMs.
func checkVMs(all []VM) error {
	seen, at := make(map[string]bool, len(all)), make(map[string]string, len(all))
	for i := range all {
		vm := &all[i]
		if err := checkID(vm.ID); err != nil {
			return err
		}
		if seen[vm.ID] {
			return fmt.Errorf("it lists the VM %s twice", vm.ID)
		}
		seen[vm.ID] = true
		if err := vm.check(); err != nil {
			return fmt.Errorf("VM %s: %w", vm.ID, err)
		}
		if vm.Address == "" || vm.State == Deleting || vm.State == Stopped { // another one may have its address now
			continue
		}
		addr := net.JoinHostPort(vm.Address, strconv.Itoa(vm.Port))
		if other := at[addr]; other != "" {
			return fmt.Errorf("the VMs %s and %s have the same address %s", other, vm.ID, vm.Address)
		}
		at[addr] = vm.ID
	}
	return nil
}

func (vm *VM) check() error {
	switch vm.State {
	case Creating, Deleting, Stopped:
	case Running:
		if vm.Address == "" {
			return errors.New("it is running and has no address")
		}
	default:
		return fmt.Errorf("state %.40q: use creating, running, deleting or stopped", vm.State)
	}
	switch {
	case strings.ContainsAny(vm.Address, "/@[] ") || !isShown(vm.Address) ||
		strings.Contains(vm.Address, ":") && net.ParseIP(vm.Address) == nil:
		return fmt.Errorf("address %.160q: use a host name or an IP address; the port goes to port", vm.Address)
	case vm.Port < 0 || vm.Port > 65535:
		return fmt.Errorf("port %d: use 1 to 65535", vm.Port)
	case strings.ContainsAny(vm.User, " :@/") || !isShown(vm.User):
		return fmt.Errorf("user %.160q: use the name of an account", vm.User)
	case vm.IdentityFile != "" && (!filepath.IsAbs(vm.IdentityFile) || !isShown(vm.IdentityFile)):
		return fmt.Errorf("identity_file %.160q: use an absolute path", vm.IdentityFile)
	case vm.Capacity < 0 || vm.Capacity > elastic.MaxCapacity:
		return fmt.Errorf("capacity %d: use 1 to %d", vm.Capacity, elastic.MaxCapacity)
	case len(vm.Labels) > maxLabels:
		return fmt.Errorf("%d labels, at most %d are possible", len(vm.Labels), maxLabels)
	case len(vm.HostKeys) > maxHostKeys:
		return fmt.Errorf("%d host keys, at most %d are possible", len(vm.HostKeys), maxHostKeys)
	}
	for name, value := range vm.Labels {
		if name == "" || len(name) > maxLabel || len(value) > maxLabel || !isShown(name) || !isShown(value) {
			return fmt.Errorf("label %.80q: name and value are printable, with at most %d bytes", name, maxLabel)
		}
	}
	for _, text := range vm.HostKeys {
		if _, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text)); err != nil || len(options)+len(rest) > 0 {
			return fmt.Errorf("host key %.80q: use the form of /etc/ssh/ssh_host_*_key.pub", text)
		}
	}
	return nil
}

// isShown reports whether a text can be shown in a line, and is not too long.
func isShown(text string) bool {
	return len(text) <= maxText && !strings.ContainsFunc(text, func(c rune) bool {
		return c == unicode.ReplacementChar || !unicode.IsPrint(c)
	})
}

// checkIDs checks IDs of VMs.
func checkIDs(ids []string) error {
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
		if seen[id] {
			return fmt.Errorf("it names the VM %s twice", id)
		}
		seen[id] = true
	}
	return nil
}

func checkID(id string) error {
	if !inventory.IsID(id) {
		return fmt.Errorf("the id %.160q cannot be used: it has 1 to 128 of A-Z a-z 0-9 . _ : - and begins with a letter "+
			"or digit", id)
	}
	return nil
}
