package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/vmtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// embeddedStop bounds the wait for what runs on the embedded VM at the end.
const embeddedStop = 10 * time.Second

// vmFlags say which VMs there are and how to reach them.
type vmFlags struct {
	instances  []string
	capacity   int
	identities []string
	knownHosts []string
	runner     string
	bootstrap  bool
	binaries   []string
}

func (f *vmFlags) register(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.instances, "instance", nil, "a VM, ssh://[USER@]HOST[:PORT]; may repeat (default a VM embedded in this program)")
	fl.IntVar(&f.capacity, "capacity", 1, "how many builds each VM takes at once")
	fl.StringArrayVar(&f.identities, "identity", nil, "file with a private key to log in with; may repeat (default the ssh-agent, then ~/.ssh/id_*)")
	fl.StringArrayVar(&f.knownHosts, "known-hosts", nil, "file with the VMs' host keys; may repeat (default ~/.ssh/known_hosts)")
	fl.StringVar(&f.runner, "runner-command", "", "the step runner's command on the VMs, a stepmux, gitlab-runner or step-runner; words are split at blanks (default stepmux, or one of the others where that is missing)")
	fl.BoolVar(&f.bootstrap, "bootstrap", false, "put this program on VMs whose stepmux is missing, cannot be executed, or is too old for a relay: in ~/.cache/stepmux or a directory for temporary files")
	fl.StringArrayVar(&f.binaries, "bootstrap-binary", nil, "OS/ARCH=FILE, a stepmux to put on VMs of that kind, as --bootstrap does; may repeat")
}

// group returns the VMs the flags name, and a function that ends what was started for them.
func (f *vmFlags) group() (*instance.Group, func(), error) {
	if f.capacity < 1 {
		return nil, nil, usageError(fmt.Errorf("--capacity %d: a VM takes at least one build", f.capacity))
	}
	if len(f.instances) == 0 {
		return f.embedded()
	}
	runner, err := splitCommand(f.runner)
	if err != nil {
		return nil, nil, usageError(err)
	}
	all, err := f.parseInstances()
	if err != nil {
		return nil, nil, usageError(err)
	}
	auth, err := f.auth()
	if err != nil {
		return nil, nil, usageError(err)
	}
	hostKeys, err := f.hostKeys()
	if err != nil {
		return nil, nil, usageError(err)
	}
	for i := range all {
		all[i].Runner = runner
		all[i].SSH.Auth, all[i].SSH.HostKeys = auth, hostKeys
	}
	group, err := instance.NewGroup(all...)
	if err != nil {
		return nil, nil, usageError(err)
	}
	return group, func() {}, nil
}

// parseInstances returns the VMs that --instance names, without how to log in.
func (f *vmFlags) parseInstances() ([]instance.Instance, error) {
	all := make([]instance.Instance, len(f.instances))
	for i, text := range f.instances {
		login, addr, err := parseInstance(text)
		if err != nil {
			return nil, err
		}
		all[i] = instance.Instance{ID: addr, Addr: addr, Capacity: f.capacity, SSH: mux.Config{User: login}}
	}
	return all, nil
}

// ownFile is the file this program was started from, though another may have taken its name.
const ownFile = "/proc/self/exe"

// bootstraps returns the programs that may be put on VMs.
func (f *vmFlags) bootstraps() ([]*connector.Binary, error) {
	var all []*connector.Binary
	for _, text := range f.binaries {
		platform, file, ok := strings.Cut(text, "=")
		if !ok || !wire.ValidPlatform(platform) || file == "" {
			return nil, fmt.Errorf("--bootstrap-binary %q: want OS/ARCH=FILE, as in linux/arm64=stepmux-arm64", text)
		}
		b, err := connector.LoadBinary(file)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-binary: %w", err)
		}
		if b.Platform() != platform {
			return nil, fmt.Errorf("--bootstrap-binary %q: the file is for %s", text, b.Platform())
		}
		all = append(all, b)
	}
	if f.bootstrap {
		own, err := connector.LoadBinary(ownFile)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap: %w", err)
		}
		all = append(all, own) // one that was named comes first
	}
	return all, nil
}

// embedded starts a VM in this process. It has no isolation and runs this very program.
func (f *vmFlags) embedded() (*instance.Group, func(), error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, systemError(fmt.Errorf("find this program: %w", err))
	}
	dir, err := os.MkdirTemp("", "stepmux-")
	if err != nil {
		return nil, nil, systemError(fmt.Errorf("make a directory for the embedded VM: %w", err))
	}
	vm, err := vmtest.Start(vmtest.Config{Dir: dir})
	if err != nil {
		_ = os.RemoveAll(dir) // it is empty
		return nil, nil, systemError(fmt.Errorf("start the embedded VM: %w", err))
	}
	stop := func() {
		// What still runs there is asked to end first, as by a machine that shuts down.
		ctx, cancel := context.WithTimeout(context.Background(), embeddedStop)
		defer cancel()
		_ = vm.Shutdown(ctx) // then it is made to
		if err := os.RemoveAll(dir); err != nil {
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
			Auth:     []mux.Auth{mux.Key("of the embedded VM", vm.ClientSigner())},
			HostKeys: mux.PinnedHostKeys(vm.HostKey()),
		},
	})
	if err != nil {
		stop()
		return nil, nil, systemError(err)
	}
	return group, stop, nil
}

// auth returns the ways to log in.
func (f *vmFlags) auth() ([]mux.Auth, error) {
	var all []mux.Auth
	for _, file := range f.identities {
		key, err := mux.KeyFile(file)
		if err != nil {
			return nil, fmt.Errorf("--identity: %w", err)
		}
		all = append(all, key)
	}
	if len(all) > 0 {
		return all, nil
	}
	if socket := os.Getenv("SSH_AUTH_SOCK"); socket != "" {
		agent, err := mux.Agent(socket)
		if err != nil {
			return nil, err
		}
		all = append(all, agent)
	}
	if home, err := os.UserHomeDir(); err == nil {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			// Those that are missing, or need a passphrase, are not ours to complain about.
			if key, err := mux.KeyFile(filepath.Join(home, ".ssh", name)); err == nil {
				all = append(all, key)
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no way to log in: name a private key with --identity, or start an ssh-agent")
	}
	return all, nil
}

func (f *vmFlags) hostKeys() (mux.HostKeys, error) {
	files := f.knownHosts
	if len(files) == 0 {
		home, err := os.UserHomeDir()
		if err != nil {
			return mux.HostKeys{}, fmt.Errorf("find ~/.ssh/known_hosts: %w; use --known-hosts", err)
		}
		files = []string{filepath.Join(home, ".ssh", "known_hosts")}
	}
	keys, err := mux.KnownHosts(files...)
	if err != nil {
		return mux.HostKeys{}, fmt.Errorf("%w; make the file with: ssh-keyscan -p PORT HOST, check the keys, and name it with --known-hosts", err)
	}
	return keys, nil
}

// parseInstance reads ssh://[USER@]HOST[:PORT].
func parseInstance(text string) (login, addr string, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("--instance %q: %w", text, err)
	case u.Scheme != "ssh" || u.Hostname() == "":
		return "", "", fmt.Errorf("--instance %q: want ssh://[USER@]HOST[:PORT]", text)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "", "", fmt.Errorf("--instance %q: nothing may follow the port", text)
	}
	if _, secret := u.User.Password(); secret {
		return "", "", errors.New("--instance: no password in the URL, everybody on this machine could read it; use --identity or an agent")
	}
	login = u.User.Username()
	if login == "" {
		me, err := user.Current()
		if err != nil {
			return "", "", fmt.Errorf("--instance %q names no user, and this one has no name: %w", text, err)
		}
		login = me.Username
	}
	port := u.Port()
	if port == "" {
		port = "22"
	}
	return login, net.JoinHostPort(u.Hostname(), port), nil
}
