package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/elastic/groupfile"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/sshtarget"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// maxConnTime bounds --max-age and --idle-timeout, maxKeepalive the other times of a connection.
	maxConnTime, maxKeepalive = 365 * 24 * time.Hour, time.Hour
	// maxSessions bounds --session-limit.
	maxSessions = 10_000
)

// maxAtOnce bounds how many VMs a command examines at the same time.
const maxAtOnce = 8

// embeddedStop bounds the wait for processes on the embedded VM at the end.
const embeddedStop = 10 * time.Second

// vmHelp describes the flags of vmFlags that need more than a line.
const vmHelp = `A VM is ssh://[USER@]HOST[:PORT], or [USER@]NAME[:PORT] with a NAME in ~/.ssh/config, whose HostName,
Port, User, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile, ProxyJump, HostKeyAlias and
UserKnownHostsFile apply. ID= before it gives the machine an identity (an instance id): a new machine at an old
address needs a new ID. VMs behind a jump host share one connection to it. The file of --inventory takes precedence
over the flags, and the flags over ~/.ssh/config.

` + sshtarget.PolicyHelp

// vmFlags name the VMs and how to reach them.
type vmFlags struct {
	instances []string
	inventory string
	capacity  int
	runner    []string
	vmOptions vmconfig.Options // only for commands that call registerOptions
	way       sshtarget.ResolverConfig

	route                            connector.Route // only for commands that call registerConnections, like the next
	maxAge, idleTimeout, stopTimeout time.Duration

	connectWait time.Duration // only for commands that call registerConnectWait

	elastic groupfile.Groups // only for a manager

	flags        *pflag.FlagSet
	inventoryErr func() error // the error in the inventory; nil without an inventory
}

func (f *vmFlags) register(fl *pflag.FlagSet) {
	f.flags = fl
	fl.StringArrayVar(&f.instances, "instance", nil, "a `VM`, [ID=]ssh://[USER@]HOST[:PORT] or [ID=]NAME of ssh_config; "+
		"may repeat (run: without --instance and --inventory, a VM embedded in this program)")
	fl.StringVar(&f.inventory, "inventory", "",
		"YAML `FILE` that lists the VMs; run and manager reread it when it changes and on SIGHUP")
	f.capacity = 1
	fl.StringVar(&f.way.Jump, "jump", "",
		"jump `HOSTS` for all VMs, separated by commas; none for no jump host (default those of ssh_config)")
	fl.StringVar(&f.way.SSHConfig, "ssh-config", "",
		"`FILE` to read instead of ~/.ssh/config and /etc/ssh/ssh_config; none for no file")
	grouped(fl, vmGroup)
	fl.StringArrayVar(&f.way.Identities, "identity", nil, "`FILE` with a private key to log in with; may repeat (default "+
		"the keys in ssh_config, else the ssh-agent, then ~/.ssh/id_*)")
	wordsFlag(fl, &f.way.PassphraseCommand, "passphrase-command",
		"`command` that prints the passphrase of a key file (--identity or, run only, --sign-key); %f is the file; words "+
			"are split at spaces")
	wordsFlag(fl, &f.way.IdentityCommand, "identity-command", "`command` that prints a private key, and its certificate "+
		"if it has one; run for each connection to %r@%h:%p; words are split at spaces")
	fl.StringArrayVar(&f.way.KnownHosts, "known-hosts", nil,
		"`FILE` with the VMs' host keys; may repeat (default ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts)")
	known, _ := sshtarget.ParsePolicy("known-hosts") // it is one
	f.way.Policies = []sshtarget.Policy{known}
	fl.Func("host-key", "`policy` for host keys: known-hosts, pinned:ID=KEY, command:CMD, first-use[:FILE] or insecure; "+
		"may repeat, the first answer counts (default known-hosts)", func(text string) error {
		policy, err := sshtarget.ParsePolicy(text)
		if !fl.Changed("host-key") {
			f.way.Policies = nil
		}
		f.way.Policies = append(f.way.Policies, policy)
		return err
	})
	_ = fl.SetAnnotation("host-key", valuesKey, // cannot fail: the flag exists
		[]string{"known-hosts", "first-use", "first-use:", "insecure", "pinned:", "command:"})
	flagfile.Repeat(fl, "host-key")
	grouped(fl, keyGroup)
	wordsFlag(fl, &f.runner, "runner-command", "the step runner's `command` on the VMs, a stepmux, or a gitlab-runner "+
		"or step-runner with steps serve; words are split at spaces (default stepmux, or one of the others if that is "+
		"missing)")
	grouped(fl, runnerGroup)
}

// registerConnectWait adds the flag of commands that wait for VMs.
func (f *vmFlags) registerConnectWait(fl *pflag.FlagSet) {
	f.connectWait = 30 * time.Second
	boundedTimeFlag(fl, &f.connectWait, "connect-wait", "wait this `time` for a VM that refuses connections or does not "+
		"answer, as it does while it starts; other VMs take its builds during the wait; 0: do not wait", time.Second,
		maxKeepalive, 0)
	grouped(fl, connectionGroup)
}

// registerConnections adds the flags of commands that keep connections open, for builds.
func (f *vmFlags) registerConnections(fl *pflag.FlagSet) {
	f.registerConnectWait(fl)
	f.route = connector.Auto
	choiceFlag(fl, &f.route, "route", "how to start and reach a build's step runner: auto, relay, streamlocal or session",
		"auto", "session", "streamlocal", "relay")
	fl.IntVar(&f.capacity, "capacity", f.capacity, "largest number `N` of builds on each VM at once")
	_ = fl.SetAnnotation("capacity", groupKey, []string{vmGroup}) // cannot fail: the flag exists
	boundedTimeFlag(fl, &f.maxAge, "max-age", "a connection that has reached this `age` takes no new builds, and closes "+
		"with the last of its builds; 0: never (default never)", time.Second, maxConnTime, 0)
	f.idleTimeout = 5 * time.Minute
	boundedTimeFlag(fl, &f.idleTimeout, "idle-timeout",
		"close a connection that has had no builds for this `time`; 0: never", time.Second, maxConnTime, -1)
	f.way.KeepaliveInterval, f.way.KeepaliveTimeout = 15*time.Second, 15*time.Second
	boundedTimeFlag(fl, &f.way.KeepaliveInterval, "keepalive-interval",
		"send a keepalive to a VM that has sent nothing for this `time`", time.Second, maxKeepalive)
	boundedTimeFlag(fl, &f.way.KeepaliveTimeout, "keepalive-timeout",
		"give a connection up if a keepalive is not answered within this `time`", time.Second, maxKeepalive)
	fl.Func("session-limit", "the largest `N` of sessions that the VMs' sshd allows on a connection, its MaxSessions "+
		"(default: learned from the first refusal)", func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxSessions {
			return fmt.Errorf("%.40q: use 1 to %d", text, maxSessions)
		}
		f.way.SessionLimit = n
		return nil
	})
	f.stopTimeout = 20 * time.Second
	boundedTimeFlag(fl, &f.stopTimeout, "stop-timeout", "wait this `time` for the end of a build's step runner; it "+
		"includes the grace of the build's processes after SIGTERM", time.Second, maxKeepalive)
	grouped(fl, connectionGroup)
}

// registerOptions adds the flags of commands that start step runners.
func (f *vmFlags) registerOptions(fl *pflag.FlagSet) { optionFlags(fl, f.vmOptions.Flags()) }

// optionFlags adds flags of the options of a VM.
func optionFlags(fl *pflag.FlagSet, options []vmconfig.Flag) {
	for _, option := range options {
		fl.Var(option, option.Name, option.Usage)
		if option.Values != nil {
			_ = fl.SetAnnotation(option.Name, valuesKey, option.Values) // cannot fail: the flag exists
		}
	}
	grouped(fl, limitGroup)
}

// limitNames are the flags of the limits of each build, on a VM, in a container or in a pod.
var limitNames = vmconfig.Names(new(vmconfig.Limits).Flags())

// providerConfig returns the configuration of the provider of the builds.
func (f *vmFlags) providerConfig(
	group *instance.Group, bootstrap []*program.Binary, counts *metrics.Metrics, log *slog.Logger,
) instance.Config {
	return instance.Config{
		Group: group, Route: f.route, Bootstrap: bootstrap, Version: buildinfo.Version(), Logger: log,
		ConnectWait: f.connectWait, MaxAge: f.maxAge, IdleTimeout: f.idleTimeout, StopTimeout: f.stopTimeout,
		ConnTrace: counts.ConnTrace(), DialDone: counts.Dialed, Retired: counts.Retired,
	}
}

// group returns the VMs of the flags, and a function that ends what was started for them, such as the embedded VM.
// ctx bounds the commands that the flags name. log receives changes of the inventory.
func (f *vmFlags) group(ctx context.Context, log *slog.Logger) (*instance.Group, func(), error) {
	if err := f.checkUse(); err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(f.way.Policies, sshtarget.Policy.Insecure) {
		fmt.Fprintln(os.Stderr, "stepmux: warning: --host-key insecure: anybody on the network can pose as the VMs, and "+
			"read and change all that is sent")
	}
	f.way.Warn = warnOnce()
	if f.inventory != "" {
		return f.fromInventory(ctx, log)
	}
	if f.embedsVM() {
		return f.embedded(ctx)
	}
	if len(f.instances) == 0 { // there are none before they are made
		return &instance.Group{}, func() {}, nil
	}
	all, err := f.resolve(ctx)
	if err != nil {
		return nil, nil, err
	}
	group, err := instance.NewGroup(all...)
	return group, func() {}, err
}

// maxTold bounds the warnings of a warnOnce.
const maxTold = 100

// warnOnce returns a function that prints a warning, unless it has printed the same one before: an inventory is read
// again when it changes.
func warnOnce() func(text string) {
	var mu sync.Mutex
	told := map[string]bool{}
	return func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if !told[text] && len(told) < maxTold {
			told[text] = true
			fmt.Fprintln(os.Stderr, "stepmux: warning: "+termtext.Line(text))
		}
	}
}

// checkUse returns an error if the flags do not fit together, or do not fit the embedded VM if they name none.
func (f *vmFlags) checkUse() error {
	if f.capacity < 1 {
		return fmt.Errorf("--capacity %d: a VM takes at least one build", f.capacity)
	}
	for _, option := range f.vmOptions.Flags() {
		if f.flags.Changed(option.Name) && option.String() == "" {
			return fmt.Errorf("--%s is empty", option.Name)
		}
	}
	if f.embedsVM() {
		return f.needsVM("runner-command")
	}
	return nil
}

// embedsVM reports whether the flags name no VM, so that builds run on the embedded VM.
func (f *vmFlags) embedsVM() bool {
	return f.inventory == "" && len(f.instances) == 0 && len(f.elastic) == 0
}

// checkEmbedded returns the VMs of flags that name none, without the embedded VM.
func (f *vmFlags) checkEmbedded() (*instance.Group, error) {
	if err := f.checkUse(); err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		return nil, err
	}
	return f.embeddedGroup("127.0.0.1:22", "stepmux", os.TempDir(), signer, signer.PublicKey())
}

// needsVM returns an error if a flag was given that needs a VM, but no VM was named. others are further such flags of
// the command.
func (f *vmFlags) needsVM(others ...string) error {
	if f.flags.Changed("inventory") {
		return errors.New("--inventory is empty")
	}
	for _, name := range append(others,
		"identity", "passphrase-command", "identity-command", "known-hosts", "host-key", "jump", "ssh-config") {
		forSigning := name == "passphrase-command" && f.flags.Changed("sign-key")
		if f.flags.Changed(name) && !forSigning {
			return fmt.Errorf("--%s needs a VM, named by --instance or --inventory", name)
		}
	}
	return nil
}

// onEach calls do for all VMs of the flags, some at a time, and returns the results in order. While pause is called, do
// does not count.
func onEach[T any](
	ctx context.Context, f *vmFlags, do func(p *instance.Provider, in instance.Instance, pause func(wait func())) T,
) ([]T, error) {
	group, closeVMs, err := f.group(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, cmp.Or(withCode(endsignal.Code(ctx), nil), err)
	}
	defer closeVMs()
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		return nil, systemError(err)
	}
	defer func() { _ = provider.Close() }() // nil
	all := group.Instances()
	results := make([]T, len(all))
	var calls sync.WaitGroup
	slots := make(chan struct{}, maxAtOnce)
	pause := func(wait func()) {
		<-slots
		wait()
		slots <- struct{}{}
	}
	for i, in := range all {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			results[i] = do(provider, in, pause)
		})
	}
	calls.Wait()
	return results, nil
}

// resolve returns the VMs of --instance.
func (f *vmFlags) resolve(ctx context.Context) ([]instance.Instance, error) {
	resolver, err := sshtarget.NewResolver(f.way)
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
		t, err := resolver.Target(ctx, sshtarget.Host{ID: id, Place: where})
		if err != nil {
			return nil, sshtarget.OfFlag("--instance", err)
		}
		if other, there := first[t.Name]; there {
			return nil, fmt.Errorf("--instance %s and %s: two VMs of the ID %s; give one an ID of its own, as in --instance "+
				"other=%s", other, text, t.Name, where)
		}
		first[t.Name] = text
		all[i] = *instanceOf(t)
		all[i].Capacity, all[i].Runner, all[i].Options = f.capacity, f.runner, f.vmOptions
	}
	return instance.ShareJumpHosts(all), nil
}

// instanceOf converts a target to an instance, and nil to nil.
func instanceOf(t *sshtarget.Target) *instance.Instance {
	if t == nil {
		return nil
	}
	return &instance.Instance{ID: t.Name, Addr: t.Addr, SSH: t.SSH, Jump: instanceOf(t.Jump)}
}

// embedded starts a VM inside this process.
func (f *vmFlags) embedded(ctx context.Context) (*instance.Group, func(), error) {
	temp, err := makeTempDir(ctx, "")
	if err != nil {
		return nil, nil, systemError(fmt.Errorf("make a directory for the embedded VM: %w", err))
	}
	dir := temp.path
	vm, err := embeddedvm.Start(embeddedvm.Config{Dir: dir})
	if err != nil {
		_ = temp.remove() // the caller needs err
		return nil, nil, systemError(fmt.Errorf("start the embedded VM: %w", err))
	}
	stop := func() {
		// SIGTERM first, as when a machine shuts down.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), embeddedStop)
		defer cancel()
		_ = vm.Shutdown(ctx) // when ctx ends, they are killed
		if err := temp.remove(); err != nil {
			fmt.Fprintf(os.Stderr, "stepmux: remove the embedded VM's directory: %v\n", err)
		}
	}
	runner, err := embeddedRunner(dir)
	if err != nil {
		stop()
		return nil, nil, systemError(err)
	}
	group, err := f.embeddedGroup(vm.Addr(), runner, dir, vm.ClientSigner(), vm.HostKey())
	if err != nil {
		stop()
		return nil, nil, err
	}
	return group, stop, nil
}

// embeddedGroup returns the group of the embedded VM.
func (f *vmFlags) embeddedGroup(
	addr, runner, dir string, signer ssh.Signer, hostKey ssh.PublicKey,
) (*instance.Group, error) {
	options := f.vmOptions
	options.TempDir = dir
	group, err := instance.NewGroup(instance.Instance{
		ID: "embedded", Addr: addr, Capacity: f.capacity, Runner: []string{runner}, Options: options,
		SSH: mux.Config{
			User:     "ci",
			Auth:     []login.Auth{login.Key("of the embedded VM", signer)},
			HostKeys: login.PinnedHostKeys(hostKey),

			KeepaliveInterval: f.way.KeepaliveInterval, KeepaliveTimeout: f.way.KeepaliveTimeout,
			SessionLimit: f.way.SessionLimit,
		},
	})
	return group, systemError(err)
}

// embeddedRunner returns the program for the embedded VM's end: the one that this program contains, unpacked into
// dir, or this program itself.
func embeddedRunner(dir string) (string, error) {
	if end := ownEnd(); end != nil {
		file := filepath.Join(dir, "stepmux-vm")
		if err := end.Install(file); err != nil {
			return "", fmt.Errorf("put stepmux-vm on the embedded VM: %w", err)
		}
		return file, nil
	}
	file, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return file, nil
}
