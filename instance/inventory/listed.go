package inventory

import (
	"context"
	"net"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v4"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// Defaults are the values that VMs have in common, as the defaults of an inventory. The zero value is empty.
type Defaults struct {
	reader yamltree.Reader
	at     *yaml.Node
}

// defaultKeys are the keys of Defaults. A policy has capacity and max_uses, and each VM has its own host keys.
var defaultKeys = func() (keys []string) {
	for _, key := range entryKeys[2:] {
		if key != "capacity" && key != "max_uses" && key != "host_keys" {
			keys = append(keys, key)
		}
	}
	return keys
}()

// ReadDefaults reads the value of a key defaults. Its keys are those of an inventory but capacity, max_uses and
// host_keys. Paths are relative to the working directory.
func ReadDefaults(r *yamltree.Reader, n *yaml.Node) Defaults {
	r.Known(r.Mapping(n, "defaults"), "defaults", defaultKeys)
	return Defaults{*r, n}
}

// Listed is a VM of which a program says how to reach it. ID and Host are required.
type Listed struct {
	ID, Host string
	Port     int    // if zero, ssh_config's, or 22
	User     string // if empty, that of the Defaults
	KeyFile  string // if empty, that of the Defaults
	Labels   map[string]string
	HostKeys []ssh.PublicKey
	Capacity int // if zero, that of the Fallback
	MaxUses  int
}

// Labels returns the labels of all VMs.
func (d Defaults) Labels(ctx context.Context, fallback Fallback) (map[string]string, error) {
	r, err := d.open(ctx, fallback)
	return r.defaults.labels, err
}

// Instances returns the instances for VMs that are listed. ctx bounds the calls of the Resolver.
func (d Defaults) Instances(ctx context.Context, fallback Fallback, vms []Listed) ([]instance.Instance, error) {
	r, err := d.open(ctx, fallback)
	if err != nil {
		return nil, err
	}
	all := make([]instance.Instance, len(vms))
	for i := range vms {
		if all[i] = r.instance(r.listed(&vms[i]), nil); r.Err != nil {
			return nil, r.Err
		}
	}
	return instance.ShareJumpHosts(all), nil
}

// open returns a reader that has read the defaults.
func (d Defaults) open(ctx context.Context, fallback Fallback) (*reader, error) {
	r := &reader{Reader: d.reader, ctx: ctx, resolver: sync.OnceValues(fallback.Resolver)}
	if d.at == nil {
		r.Text = &yamltree.Text{}
	}
	r.defaults = entry{
		capacity: max(fallback.Capacity, 1), runner: fallback.Runner, Options: fallback.Options,
		health: healthcheck.Default,
	}
	if d.at != nil {
		r.defaults = r.entry(d.at, "defaults", defaultKeys, r.defaults)
	}
	return r, r.Err
}

func (r *reader) listed(vm *Listed) entry {
	e := r.defaults
	e.id, e.addr, e.hostKeys, e.maxUses = vm.ID, vm.Host, vm.HostKeys, vm.MaxUses
	if vm.Port != 0 {
		e.addr = net.JoinHostPort(vm.Host, strconv.Itoa(vm.Port))
	}
	if vm.User != "" {
		e.user = vm.User
	}
	if vm.Capacity > 0 {
		e.capacity = vm.Capacity
	}
	if len(vm.Labels) > 0 {
		e.labels = merged(e.labels, vm.Labels)
	}
	if vm.KeyFile == "" {
		return e
	}
	resolver, err := r.resolver()
	if err == nil {
		e.auth, err = keyOf(r.ctx, resolver, vm.KeyFile)
	}
	if err != nil {
		r.Failf(nil, "the VM %s: %v", vm.ID, err)
	}
	return e
}
