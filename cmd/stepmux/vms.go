package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/sshtarget"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// embeddedStop bounds the wait for processes on the embedded VM at the end.
const embeddedStop = 10 * time.Second

// vmHelp describes the flags of vmFlags that need more than a line.
const vmHelp = `A VM is ssh://[USER@]HOST[:PORT], or [USER@]NAME[:PORT] with a NAME in ~/.ssh/config, whose HostName,
Port, User, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile, ProxyJump, HostKeyAlias and
UserKnownHostsFile apply. ID= before it gives the machine an identity (an instance id): a new machine at an old
address needs a new one. VMs behind a jump host share one connection to it. The file of --inventory overrides the
flags, and they override ~/.ssh/config.

` + sshtarget.PolicyHelp

// vmFlags name the VMs and the ways to reach them.
type vmFlags struct {
	instances       []string
	inventory       string
	capacity        int
	identities      []string
	passphrase      string
	identityCommand string
	knownHosts      []string
	hostKey         []string
	jump            string
	sshConfig       string
	runner          string

	inventoryErr func() error // the mistake in the inventory; nil without an inventory
}

var defaultHostKey = []string{"known-hosts"}

func (f *vmFlags) register(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.instances, "instance", nil, "a VM, [ID=]ssh://[USER@]HOST[:PORT] or [ID=]NAME of ssh_config; "+
		"may repeat (run: without any, a VM embedded in this program)")
	fl.StringVar(&f.inventory, "inventory", "",
		"YAML file that lists the VMs; run rereads it when it changes and on SIGHUP")
	fl.IntVar(&f.capacity, "capacity", 1, "largest number of builds on each VM at once")
	fl.StringArrayVar(&f.identities, "identity", nil, "file with a private key to log in with; may repeat (default "+
		"the keys in ssh_config, else the ssh-agent, then ~/.ssh/id_*)")
	fl.StringVar(&f.passphrase, "passphrase-command", "",
		"command that prints the passphrase of the key file %f; it is split into words at blanks")
	fl.StringVar(&f.identityCommand, "identity-command", "", "command that prints a private key, and its certificate "+
		"if it has one, for each connection to %r@%h:%p; words are split at blanks")
	fl.StringArrayVar(&f.knownHosts, "known-hosts", nil,
		"file with the VMs' host keys; may repeat (default ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts)")
	fl.StringArrayVar(&f.hostKey, "host-key", defaultHostKey, "policy for host keys: known-hosts, pinned:ID=KEY, "+
		"command:CMD, first-use[:FILE] or insecure; may repeat, the first answer counts")
	fl.StringVar(&f.jump, "jump", "",
		"jump hosts for all VMs, separated by commas; none for no jump host (default those of ssh_config)")
	fl.StringVar(&f.sshConfig, "ssh-config", "",
		"file to read instead of ~/.ssh/config and /etc/ssh/ssh_config; none for no file")
	fl.StringVar(&f.runner, "runner-command", "", "the step runner's command on the VMs, a stepmux, gitlab-runner or "+
		"step-runner; words are split at blanks (default stepmux, or one of the others where that is missing)")
}

// group returns the VMs of the flags, and a function that ends their helpers, such as the embedded VM. ctx bounds the
// commands of the flags. log gets changes of the inventory.
func (f *vmFlags) group(ctx context.Context, log *slog.Logger) (*instance.Group, func(), error) {
	if f.capacity < 1 {
		return nil, nil, usageError(fmt.Errorf("--capacity %d: a VM takes at least one build", f.capacity))
	}
	if f.inventory != "" {
		return f.fromInventory(ctx, log)
	}
	if len(f.instances) == 0 {
		if flag := f.unusedFlag(); flag != "" {
			return nil, nil,
				usageError(fmt.Errorf("--%s needs a VM, named by --instance or --inventory", flag))
		}
		return f.embedded(ctx)
	}
	all, err := f.resolve(ctx)
	if err != nil {
		return nil, nil, usageError(err)
	}
	group, err := instance.NewGroup(all...)
	if err != nil {
		return nil, nil, usageError(err)
	}
	return group, func() {}, nil
}

// unusedFlag returns a given flag that has no effect on the embedded VM, or "".
func (f *vmFlags) unusedFlag() string {
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"identity", len(f.identities) > 0},
		{"passphrase-command", f.passphrase != ""},
		{"identity-command", f.identityCommand != ""},
		{"known-hosts", len(f.knownHosts) > 0},
		{"host-key", !slices.Equal(f.hostKey, defaultHostKey)},
		{"jump", f.jump != ""},
		{"ssh-config", f.sshConfig != ""},
	} {
		if flag.given {
			return flag.name
		}
	}
	return ""
}

// resolve returns the VMs of --instance.
func (f *vmFlags) resolve(ctx context.Context) ([]instance.Instance, error) {
	runner, err := splitCommand(f.runner)
	if err != nil {
		return nil, err
	}
	cfg, err := f.resolver()
	if err != nil {
		return nil, err
	}
	resolver, err := sshtarget.NewResolver(cfg)
	if err != nil {
		return nil, err
	}
	all := make([]instance.Instance, len(f.instances))
	first := map[string]string{} // the --instance of each ID
	for i, text := range f.instances {
		id, where, ok := strings.Cut(text, "=")
		if !ok {
			id, where = "", text
		} else if id == "" {
			return nil, fmt.Errorf("--instance %q: the ID before the = is empty", text)
		}
		t, err := resolver.Target(ctx, sshtarget.Machine{ID: id, Place: where})
		if err != nil {
			return nil, fmt.Errorf("--instance: %w", err)
		}
		if other, there := first[t.Name]; there {
			return nil, fmt.Errorf("--instance %s and %s: two VMs of the ID %s; give one an ID of its own, as in --instance "+
				"other=%s",
				other, text, t.Name, where)
		}
		first[t.Name] = text
		all[i] = instance.Instance{
			ID: t.Name, Addr: t.Addr, SSH: t.SSH, Jump: jumpHost(t.Jump), Capacity: f.capacity,
			Runner: runner,
		}
	}
	return instance.ShareJumpHosts(all), nil
}

// resolver returns the configuration that resolves addresses, keys and host keys.
func (f *vmFlags) resolver() (sshtarget.ResolverConfig, error) {
	cfg := sshtarget.ResolverConfig{
		SSHConfig:         f.sshConfig,
		Identities:        f.identities,
		PassphraseCommand: strings.Fields(f.passphrase),
		IdentityCommand:   strings.Fields(f.identityCommand),
		KnownHosts:        f.knownHosts,
		Jump:              f.jump,
	}
	for _, text := range f.hostKey {
		policy, err := sshtarget.ParsePolicy(text)
		if err != nil {
			return cfg, fmt.Errorf("--host-key %w", err)
		}
		if policy.Insecure() {
			fmt.Fprintln(os.Stderr, "stepmux: warning: --host-key insecure: anybody on the network can pose as the VMs, and "+
				"read and change all that is sent")
		}
		cfg.Policies = append(cfg.Policies, policy)
	}
	return cfg, nil
}

// jumpHost returns a target as a jump host.
func jumpHost(t *sshtarget.Target) *instance.Instance {
	if t == nil {
		return nil
	}
	return &instance.Instance{ID: t.Name, Addr: t.Addr, SSH: t.SSH, Jump: jumpHost(t.Jump)}
}

// embedded starts a VM in this process. It has no isolation, and runs this program.
func (f *vmFlags) embedded(ctx context.Context) (*instance.Group, func(), error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, systemError(fmt.Errorf("find this program: %w", err))
	}
	dir, err := os.MkdirTemp("", "stepmux-")
	if err != nil {
		return nil, nil, systemError(fmt.Errorf("make a directory for the embedded VM: %w", err))
	}
	vm, err := embeddedvm.Start(embeddedvm.Config{Dir: dir})
	if err != nil {
		_ = os.RemoveAll(dir) // it is empty
		return nil, nil, systemError(fmt.Errorf("start the embedded VM: %w", err))
	}
	stop := func() {
		// Processes get SIGTERM first, as when a machine shuts down.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), embeddedStop)
		defer cancel()
		_ = vm.Shutdown(ctx) // kills them at the end of ctx
		if err := rmtree.Remove(dir); err != nil {
			fmt.Fprintf(os.Stderr, "stepmux: remove the embedded VM's directory: %v\n", err)
		}
	}
	group, err := instance.NewGroup(instance.Instance{
		ID:       "embedded",
		Addr:     vm.Addr(),
		Capacity: f.capacity,
		Runner:   []string{program},
		TempDir:  dir,
		SSH: mux.Config{
			User:     "ci",
			Auth:     []login.Auth{login.Key("of the embedded VM", vm.ClientSigner())},
			HostKeys: login.PinnedHostKeys(vm.HostKey()),
		},
	})
	if err != nil {
		stop()
		return nil, nil, systemError(err)
	}
	return group, stop, nil
}
