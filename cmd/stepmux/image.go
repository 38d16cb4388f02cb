package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/docker/go-units"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// imageFlags describe the container that builds run in.
type imageFlags struct {
	spec   docker.Spec
	daemon string
	memory string
	cpus   string

	entrypoint string
	services   []string
	serviceEnv []string

	flags  *pflag.FlagSet
	others []string // flags that need a container
}

func (f *imageFlags) register(fl *pflag.FlagSet) {
	f.flags, f.others = fl, []string{"container-user"}
	fl.StringVar(&f.spec.Image, "image", "",
		"run each build in a container of this `IMAGE`, with the Docker daemon of its VM")
	fl.StringVar(&f.spec.Container, "container", "", "run the builds in the running container with this `NAME`")
	choiceFlag(fl, &f.spec.Pull, "pull", "when to pull the image: always, if-not-present or never (default "+
		"if-not-present; in a pod, as the template or the cluster says)",
		string(place.PullAlways), string(place.PullIfNotPresent), string(place.PullNever))
	fl.StringVar(&f.spec.Platform, "platform", "", "`OS/ARCH` of the image, if it differs from the Docker daemon's")
	fl.StringVar(&f.entrypoint, "entrypoint", "", "keep, to run the image's entrypoint, or a `PROGRAM` to run instead; "+
		"must execute its arguments, and print nothing (default: no entrypoint is run)")
	fl.StringArrayVar(&f.spec.Labels, "label", nil, "`KEY=VALUE` for the builds' containers and networks; repeatable")
	fl.StringVar(&f.spec.User, "container-user", "", "run the steps as this `USER[:GROUP]` of the container")
	fl.StringVar(&f.memory, "memory", "", "")
	fl.StringVar(&f.cpus, "cpus", "", "")
	fl.Int64Var(&f.spec.Pids, "pids-limit", 0, "")
	for _, l := range oldLimits {
		_ = fl.MarkHidden(l.old) // cannot fail: the flag exists
	}
	fl.BoolVar(&f.spec.ReadOnly, "read-only", false, "make the container's root read-only; steps work in memory")
	fl.StringArrayVar(&f.spec.Tmpfs, "tmpfs", nil, "mount a file system in memory at `PATH[:OPTIONS]`; repeatable")
	fl.StringArrayVar(&f.spec.Volumes, "volume", nil,
		"mount a directory of the VM, or a volume, in the container: `SOURCE:PATH[:ro]`; repeatable")
	fl.StringVar(&f.spec.Network, "network", "", "the container's `NETWORK`: none, host or one of the daemon's")
	fl.StringArrayVar(&f.services, "service", nil,
		"start a container of `[ALIAS=]IMAGE` beside the build, which waits until it is ready; repeatable")
	fl.StringArrayVar(&f.serviceEnv, "service-env", nil,
		"`NAME=VALUE` for the environment of all services; NAME alone takes the value in the environment; repeatable")
	timeFlag(fl, &f.spec.ServiceTimeout, "service-timeout", "how long services may take until they are ready (default 1m)")
	fl.StringArrayVar(&f.spec.Hosts, "add-host", nil, "`NAME:IP`, a name for the container's /etc/hosts; repeatable")
	grouped(fl, containerGroup)
}

// registerDaemon registers --docker, the flag of the daemon. Its default is DOCKER_HOST.
func (f *imageFlags) registerDaemon(fl *pflag.FlagSet) {
	fl.StringVar(&f.daemon, "docker", "", "`ADDRESS`, unix://PATH or tcp://HOST:PORT, of the Docker daemon, as seen from "+
		"the VMs (default unix:///var/run/docker.sock; without a VM, that of DOCKER_HOST if it is set)")
	grouped(fl, containerGroup)
	f.others = append(f.others, "docker")
}

// oldLimits are flags of the version before, with the names that they have now. The old ones take precedence over the
// limits of an inventory, as before.
var oldLimits = []struct{ old, name string }{
	{"memory", vmconfig.MemoryFlag}, {"cpus", vmconfig.CPUsFlag}, {"pids-limit", vmconfig.PIDsFlag},
}

// ownImage are the flags that cannot be used with --container, for a container that exists already.
var ownImage = []string{
	"pull", "platform", "entrypoint", "label", "memory", "cpus", "pids-limit", "read-only", "tmpfs", "volume", "network",
	"add-host", "service", "service-env", "service-timeout",
}

// check checks the flags. named is true if at least one job of the run names an image itself. Call it once.
func (f *imageFlags) check(named bool) error {
	only, needs := slices.Concat(f.others, ownImage), "--image, or a job with image"
	switch {
	case f.spec.Container != "" && f.spec.Image != "":
		return errors.New("use either --image or --container")
	case f.spec.Container != "":
		only, needs = slices.Concat(ownImage, limitNames), "--image: a container that is there already has its own"
	case f.flags.Changed("image") && f.spec.Image == "":
		return errors.New("--image is empty")
	case f.flags.Changed("container"):
		return errors.New("--container is empty")
	case f.spec.Image != "" || named:
		only = nil
	}
	for _, name := range only {
		if f.flags.Changed(name) {
			return fmt.Errorf("--%s needs %s", name, needs)
		}
	}
	for _, l := range oldLimits {
		if f.flags.Changed(l.old) {
			fmt.Fprintf(os.Stderr, "stepmux: warning: --%s is now --%s; the next version no longer reads it\n", l.old, l.name)
		}
	}
	return f.read()
}

// read parses the flags that are texts.
func (f *imageFlags) read() (err error) {
	if f.memory != "" {
		if f.spec.Memory, err = units.RAMInBytes(f.memory); err != nil || f.spec.Memory <= 0 {
			return fmt.Errorf("--memory %.40q: write a number of bytes with a unit, as in 512m or 4g", f.memory)
		}
	}
	if f.cpus != "" {
		n, ok := new(big.Rat).SetString(f.cpus)
		if ok {
			n.Mul(n, big.NewRat(1e9, 1))
			ok = n.Sign() > 0 && n.IsInt() && n.Num().IsInt64()
		}
		if !ok {
			return fmt.Errorf("--cpus %.40q: write a number of processors, as in 2 or 1.5", f.cpus)
		}
		f.spec.NanoCPUs = n.Num().Int64()
	}
	if f.entrypoint == "keep" {
		f.spec.KeepEntrypoint = true
	} else if f.entrypoint != "" {
		f.spec.Entrypoint = []string{f.entrypoint}
	}
	for i, entry := range f.serviceEnv {
		if !strings.Contains(entry, "=") {
			f.serviceEnv[i] += "=" + os.Getenv(entry)
		}
	}
	for _, text := range f.services {
		alias, image, ok := strings.Cut(text, "=")
		if !ok {
			alias, image = "", text
		}
		f.spec.Services = append(f.spec.Services, place.Service{Image: image, Alias: alias})
	}
	return nil
}

// container returns the container of a job. own is what the job's keys image and services say, or nil. It returns nil
// for a job without a container. The flags take precedence over the job's text; the services of both are started.
func (f *imageFlags) container(own *place.Spec) (*docker.Spec, error) {
	spec := f.spec
	switch {
	case spec.Container != "" && own != nil && len(own.Services) > 0:
		return nil, errors.New("the job has services, and --container names a container that runs already: start them with " +
			"that, or use --image")
	case spec.Container != "":
		return &spec, spec.Check()
	case spec.Image == "" && own == nil:
		return nil, nil
	case own == nil:
	default:
		spec.Services = slices.Concat(own.Services, spec.Services)
		if spec.Image != "" {
			break
		}
		if spec.Image = own.Image; spec.Image == "" {
			return nil, errors.New("the job has services and no image; name one by --image")
		}
		if own.Pull != "" && !f.flags.Changed("pull") {
			spec.Pull = own.Pull
		}
		if f.entrypoint == "" {
			spec.Entrypoint = own.Entrypoint
		}
		spec.Platform, spec.User = cmp.Or(spec.Platform, own.Platform), cmp.Or(spec.User, own.User)
	}
	spec.Services = slices.Clone(spec.Services)
	for i := range spec.Services {
		spec.Services[i].Env = slices.Concat(f.serviceEnv, spec.Services[i].Env)
	}
	return &spec, spec.Check()
}

// configure sets the daemon's socket and the programs for containers. With onThisMachine, builds run on this machine,
// and configure checks that the daemon answers.
func (f *imageFlags) configure(cfg *instance.Config, onThisMachine bool) error {
	if err := f.configureLater(cfg, onThisMachine); err != nil {
		return err
	}
	if onThisMachine && cfg.Docker.TCP == "" {
		return systemError(checkSocket(cfg.Docker.String()))
	}
	return nil
}

// configureLater is configure for builds that may come later: the daemon need not answer yet.
func (f *imageFlags) configureLater(cfg *instance.Config, onThisMachine bool) error {
	from, daemon := "--docker", f.daemon
	if daemon == "" && onThisMachine {
		from, daemon = "DOCKER_HOST", os.Getenv("DOCKER_HOST")
	}
	if daemon != "" {
		var err error
		if cfg.Docker, err = daemonAddress(from, daemon); err != nil {
			return err
		}
	}
	return f.addPrograms(cfg, "--image")
}

// addPrograms sets the programs for containers. flag names the flag that errors mention.
func (f *imageFlags) addPrograms(cfg *instance.Config, flag string) error {
	cfg.ContainerPrograms = append(cfg.ContainerPrograms, cfg.Bootstrap...)
	if ends := carried(); len(ends) > 0 {
		cfg.ContainerPrograms = append(cfg.ContainerPrograms, ends...)
		return nil
	}
	own, err := program.LoadBinary(ownFile)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	cfg.ContainerPrograms = append(cfg.ContainerPrograms, own)
	return nil
}

// daemonAddress parses the address of a daemon, given by a flag or a variable. DOCKER_CERT_PATH and DOCKER_TLS_VERIFY
// secure a connection over TCP, as for the Docker client.
func daemonAddress(from, daemon string) (docker.Address, error) {
	certs := os.Getenv("DOCKER_CERT_PATH")
	if certs == "" && os.Getenv("DOCKER_TLS_VERIFY") != "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return docker.Address{}, fmt.Errorf("DOCKER_TLS_VERIFY: %w", err)
		}
		certs = filepath.Join(home, ".docker")
	}
	at, err := docker.ParseAddress(daemon, certs)
	switch {
	case strings.HasPrefix(daemon, "ssh://"):
		return docker.Address{}, fmt.Errorf("%s %.160q: name the VM by --instance", from, daemon)
	case err != nil:
		return docker.Address{}, fmt.Errorf("%s %.160q: %w", from, daemon, err)
	}
	return at, nil
}

// checkSocket checks the socket of a daemon on this machine. If it cannot be opened, the error says whether to start
// the daemon or to change the user's groups.
func checkSocket(at string) error {
	conn, err := net.Dial("unix", at)
	if err == nil {
		return conn.Close()
	}
	err = fmt.Errorf("connect to the Docker daemon: %w", err)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w (is it installed and running? DOCKER_HOST names another socket, and --docker, "+
			"where there is such a flag)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (its group may open it: %s; \"usermod -aG GROUP USER\" adds a user, and makes the user's "+
			"next login as powerful as root on this machine)", err, groupOf(at))
	}
	return err
}

// groupOf returns the name of a file's group, or its number.
func groupOf(file string) string {
	fi, err := os.Stat(file)
	if err != nil {
		return "unknown"
	}
	stat, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "unknown"
	}
	id := strconv.FormatUint(uint64(stat.Gid), 10)
	if group, err := user.LookupGroupId(id); err == nil {
		return group.Name
	}
	return id
}
