package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/elastic/groupfile"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/access"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/gcpace"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone/managed"
)

const (
	// managerVar is the environment variable with the socket of the manager.
	managerVar = "STEPMUX_MANAGER"
	// systemSocket is the socket of a manager that runs as root. /run/stepmux belongs to the users of builds.
	systemSocket = "/run/stepmux-manager/manager.sock"
	// managerStop bounds the wait for the end of a manager.
	managerStop = 20 * time.Second
)

// ownSocket returns the default socket of a manager that this user starts. Its name differs from the names where ps
// looks for runs.
func ownSocket() string {
	if path := os.Getenv(managerVar); path != "" {
		return path
	}
	if os.Geteuid() == 0 {
		return systemSocket
	}
	return filepath.Join(control.Dir(), "manager.socket")
}

type managerFlags struct {
	vmFlags
	logFlags
	bootstrapFlags
	imageFlags
	podFlags
	config  string
	check   bool
	schema  bool
	state   string
	socket  string
	group   string
	key     string
	linger  time.Duration
	keep    time.Duration
	logs    string
	files   string
	metrics string
	doors   doorFlags
	nats    state.NATS
	strict  bool
}

// checkNATS returns the NATS configuration of the flags, or nil without --nats.
func (f *managerFlags) checkNATS() (*state.NATS, error) {
	n := &f.nats
	switch {
	case len(n.URLs) == 0 && (n.Creds != "" || n.CA != "" || n.Cert != "" || n.Key != ""):
		return nil, errors.New("--nats-creds, --nats-ca, --nats-cert and --nats-key need --nats")
	case len(n.URLs) == 0:
		return nil, nil
	case (n.Cert == "") != (n.Key == ""):
		return nil, errors.New("--nats-cert and --nats-key need each other")
	case f.key == "":
		return nil, errors.New("--nats needs --key-file: the managers of a cluster seal with the same key")
	case f.onCluster():
		return nil, errors.New("--nats does not work with --kubernetes: one manager has the cluster")
	case f.vmFlags.embedsVM():
		return nil, errors.New("--nats needs --inventory, --instance or the key elastic: other managers cannot reach the " +
			"embedded VM")
	}
	return n, nil
}

// managerHelp is the description of manager.
const managerHelp = `Run builds from a queue on VMs, until SIGTERM or SIGINT. 'stepmux submit' queues a build; 'logs',
'cancel', 'builds', 'ps', 'drain' and 'undrain' talk to the manager over its socket.

Queue, builds and logs are kept in the state directory. Builds survive a restart or a crash of the manager: they
continue without it for --linger, and the next manager with this directory takes them over with their logs. No build
runs twice.

--config names a YAML file with flags, by their names without the dashes: "inventory: fleet.yml". Flags that may repeat
take lists there. Flags on the command line take precedence. The inventory is read again when it changes, and on SIGHUP.
These keys of --config are no flags; docs/manager.md has a table of all keys:
` + rareKeys + `.

With --image, or if a job has the key image, a build runs in a container of its own, created by the Docker daemon of its
VM; with --kubernetes, in a pod of its own. Both survive a restart of the manager, as builds on VMs do.

Without --instance and --inventory, builds run on a VM embedded in this program, for a first try. It ends with the
program.

` + vmHelp + `

Exit codes:
  0        it was ended by SIGTERM or SIGINT
  2        wrong usage, or a configuration that is not valid
  3        the state cannot be written, or another failure of the system`

func newManagerCommand() *cobra.Command {
	return new(managerFlags).command()
}

// command returns the command of these flags.
func (f *managerFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manager --state DIR [flags]",
		Short: "Run builds from a queue on VMs, as a service that survives restarts",
		Long:  managerHelp,
		Example: `  stepmux manager --state /tmp/manager --capacity 4
  stepmux manager --config /etc/stepmux/manager.yml
  stepmux manager --config-schema >manager.schema.json`,
		Args: arguments(),
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.vmFlags.register(fl)
	f.logFlags.register(fl)
	f.bootstrapFlags.register(fl)
	f.registerOptions(fl)
	f.imageFlags.register(fl)
	f.registerDaemon(fl)
	f.podFlags.register(fl)
	f.registerConnections(fl)
	fl.StringVar(&f.config, "config", "", "YAML `FILE` with flags")
	fl.BoolVar(&f.check, "check", false, "check what the start would refuse: the flags, the file of --config, the "+
		"inventory, and the files and addresses that they name; then exit")
	fl.BoolVar(&f.schema, "config-schema", false, "print the JSON Schema of the file of --config, for editors, then exit")
	fl.StringVar(&f.state, "state", "", "`DIR` for the queue, the builds and the logs; with --nats for the manager's "+
		"own files; created if it is missing")
	fl.StringVar(&f.socket, "socket", "", "where the manager listens (default $"+managerVar+", for root "+systemSocket+
		", else manager.socket in $XDG_RUNTIME_DIR/stepmux or a directory for temporary files)")
	fl.StringVar(&f.group, "socket-group", "",
		"let the members of this `GROUP` use the manager, too (default only its own user and root)")
	fileFlag(fl, &f.key, "key-file", "`FILE` with the key that encrypts the variables of builds; created if it is "+
		"missing (default key in the state directory)")
	f.linger = manager.DefaultLinger
	timeFlag(fl, &f.linger, "linger",
		"how long builds continue without a manager, or without a connection to it, at most 24h")
	f.keep = manager.DefaultKeep
	timeFlag(fl, &f.keep, "keep", "how long builds that have ended, and their logs, are kept")
	fl.StringVar(&f.logs, "keep-logs", "10g",
		"largest size of all logs in `BYTES`, such as 500m or 10g; the oldest are removed first")
	fl.StringVar(&f.files, "keep-files", "10g", "largest size in `BYTES` of all projects that builds need, and of all "+
		"artifacts, traces and annotations; those of the oldest builds are removed first")
	fl.StringSliceVar(&f.nats.URLs, "nats", nil, "keep queue, builds and logs in the NATS cluster with the server `URL`, "+
		"and share the VMs with its other managers; repeatable, or separated by commas (default: the state directory)")
	fl.StringVar(&f.nats.Creds, "nats-creds", "", "`FILE` with credentials for --nats")
	fl.StringVar(&f.nats.CA, "nats-ca", "", "`FILE` with the certificate authorities for --nats (default "+
		"the system's)")
	fl.StringVar(&f.nats.Cert, "nats-cert", "", "`FILE` with the client's certificate for --nats")
	fl.StringVar(&f.nats.Key, "nats-key", "", "`FILE` with the key of --nats-cert")
	fl.BoolVar(&f.strict, "strict-scripts", false, "refuse jobs that 'stepmux validate' warns about, as 'stepmux submit' "+
		"does with this flag")
	fl.Var(&f.elastic, "elastic", "make VMs when builds wait, and delete them when they are idle: a mapping with name, "+
		"exec, max-instances and other keys for each group, see docs/elastic.md (default off)")
	grouped(fl, managerGroup)
	fl.StringVar(&f.metrics, "metrics", "",
		"serve Prometheus metrics and /healthz on `[HOST]:PORT`; without HOST for this machine only (default off)")
	grouped(fl, outputGroup)
	f.doors.register(fl)
	flagfile.OnlyInFile(fl, rareNames()...)
	return cmd
}

func (f *managerFlags) run(cmd *cobra.Command, _ []string) (err error) {
	if f.schema {
		return systemError(writeJSON(cmd.OutOrStdout(), flagfile.Schema(cmd.Flags(), "stepmux manager")))
	}
	gcpace.Set()
	if err := applyKeys(cmd.Flags(), f.config, cmd.ErrOrStderr()); err != nil {
		return err
	}
	group, open, err := f.settings()
	if err != nil {
		return err
	}
	bootstrap, err := f.bootstraps()
	if err != nil {
		return err
	}
	ctx, _, stop := endings(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if f.inventory == "" { // otherwise it is read again
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	logger := f.logger(cmd.ErrOrStderr())
	vms, closeVMs, err := f.machines(ctx, logger)
	if err != nil {
		return err
	}
	defer closeVMs()
	vms.SetShares(f.doors.shares())
	counts := metrics.New(buildinfo.Version())
	provider, err := f.provider(vms, bootstrap, counts, logger)
	if err != nil {
		return err
	}
	defer func() { _ = provider.Close() }() // its builds have ended or were left running
	counts.Watch(provider)
	open.Provider, open.Group, open.OnEnd, open.Logger = provider, vms, counts.Ended, logger
	if err := f.complete(ctx, group, &open); err != nil {
		return err
	}
	closeMetrics, err := f.openMetrics(counts, logger)
	if err != nil {
		return err
	}
	defer closeMetrics()
	doors, err := f.doors.open(f.check)
	if err != nil {
		return err
	}
	defer doors.close()
	if f.check {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid: "+sizeOf(vms, f.embedsVM())+
			groupsText(f.elastic))
		return systemError(err)
	}
	defer trim(ctx)()
	return f.serve(ctx, group, counts, doors, open)
}

// complete adds the groups of VMs to the configuration, and checks the files that it names.
func (f *managerFlags) complete(ctx context.Context, group int, open *manager.Config) (err error) {
	open.InventoryErr = f.inventoryErr
	if open.VMGroups, err = f.vmGroups(ctx, open.Logger); err != nil {
		return err
	}
	return f.checkFiles(group, *open)
}

// trim returns memory that is not used any more to the system, until stop is called.
func trim(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var trimmer sync.WaitGroup
	trimmer.Go(func() { gcpace.Trim(ctx) })
	return func() {
		cancel()
		trimmer.Wait()
	}
}

// settings checks the flags. It returns the configuration of the manager without its VMs, and the group of its socket,
// or -1.
func (f *managerFlags) settings() (group int, open manager.Config, err error) {
	group = -1
	logBytes, sizeErr := units.RAMInBytes(f.logs)
	fileBytes, filesErr := units.RAMInBytes(f.files)
	switch {
	case f.state == "":
		err = errors.New("--state is missing: it names the directory of the queue, the builds and the logs")
	case f.linger <= 0 || f.linger > instance.MaxLinger:
		err = fmt.Errorf("--linger: a manager's builds linger, for more than nothing and at most %v", instance.MaxLinger)
	case f.keep < time.Minute:
		err = errors.New("--keep: use at least a minute")
	case sizeErr != nil || logBytes < 1<<20:
		err = fmt.Errorf("--keep-logs %q: use a size of at least 1m, as in 500m or 10g", f.logs)
	case filesErr != nil || fileBytes < 1<<20:
		err = fmt.Errorf("--keep-files %q: use a size of at least 1m, as in 500m or 10g", f.files)
	case f.group != "":
		if group, err = groupID(f.group); err != nil {
			err = fmt.Errorf("--socket-group: %w", err)
		}
	}
	var nats *state.NATS
	if err == nil {
		nats, err = f.checkNATS()
	}
	if err == nil {
		err = f.checkPlaces()
	}
	if err == nil {
		err = f.doors.check()
	}
	if err == nil && access.IsURL(cmp.Or(f.socket, ownSocket())) { // not shown: it may have a secret
		err = errors.New("$" + managerVar + " is the URL of another manager: unset it, or name a socket with --socket")
	}
	return group, manager.Config{
		Dir: f.state, KeyFile: f.key, NATS: nats, Linger: f.linger, EndBuilds: f.embedsVM(), Keep: f.keep,
		LogBytes: logBytes, FileBytes: fileBytes, Version: buildinfo.Version(), Place: f.place,
		StrictScripts: f.strict, Pipelines: managed.Pipelines{},
	}, err
}

// checkPlaces checks the flags for containers and pods.
func (f *managerFlags) checkPlaces() error {
	if err := f.imageFlags.check(true); err != nil { // a job may have an image
		return err
	}
	if err := f.checkPods(); err != nil {
		return err
	}
	// A job may name an image, and needs the other flags then.
	if _, err := f.place(&place.Spec{Image: "image"}); err != nil {
		return err
	}
	if f.onCluster() && len(f.elastic) > 0 {
		return errors.New("the key elastic does not work with --kubernetes: the cluster has its own scaler")
	}
	if f.onCluster() && f.doors.ssh != "" {
		return errors.New("--ssh-listen does not work with --kubernetes: a pod has no login")
	}
	return nil
}

// embedsVM reports whether the flags name no machine, so that builds run on the embedded VM.
func (f *managerFlags) embedsVM() bool { return f.vmFlags.embedsVM() && !f.onCluster() }

// machines returns the VMs or the cluster, and a function that ends what was started for them.
func (f *managerFlags) machines(ctx context.Context, logger *slog.Logger) (*instance.Group, func(), error) {
	if f.embedsVM() && f.check {
		vms, err := f.checkEmbedded()
		return vms, func() {}, err
	}
	return f.vmsOrCluster(ctx, &f.vmFlags, logger)
}

// provider returns the provider of the builds. The caller closes it.
func (f *managerFlags) provider(
	vms *instance.Group, bootstrap []*program.Binary, counts *metrics.Metrics, logger *slog.Logger,
) (*instance.Provider, error) {
	cfg := f.providerConfig(vms, bootstrap, counts, logger)
	var err error
	switch {
	case f.onCluster():
		err = f.addPrograms(&cfg, "--kubernetes")
	case f.spec.Image != "" || f.spec.Container != "":
		err = f.configure(&cfg, f.embedsVM())
	default: // a job may have an image; without a daemon, its build fails
		err = f.configureLater(&cfg, f.embedsVM())
	}
	if err != nil {
		return nil, err
	}
	provider, err := instance.NewProvider(cfg)
	return provider, systemError(err)
}

// openMetrics serves the metrics, if the flags say so. The caller calls the returned function at the end. With --check,
// the address may be in use.
func (f *managerFlags) openMetrics(counts *metrics.Metrics, logger *slog.Logger) (func(), error) {
	if f.metrics == "" {
		return func() {}, nil
	}
	server, err := metrics.Serve(f.metrics, counts)
	switch {
	case err == nil:
		logger.Info("metrics", "url", "http://"+server.Addr()+"/metrics")
		return server.Close, nil
	case f.check && errors.Is(err, syscall.EADDRINUSE): // a manager may be running
		return func() {}, nil
	default:
		return nil, fmt.Errorf("--metrics: %w", err)
	}
}

// checkFiles checks the files and directories that the manager uses when it starts, and makes none: --check and the
// start refuse the same ones.
func (f *managerFlags) checkFiles(group int, cfg manager.Config) error {
	if err := manager.Check(cfg); err != nil {
		return systemError(err)
	}
	socket, made := cmp.Or(f.socket, ownSocket()), ""
	if f.socket == "" {
		made = filepath.Dir(socket)
		if _, err := os.Lstat(made); err == nil && made == control.Dir() {
			if err := control.CheckDir(made); err != nil {
				return systemError(err)
			}
		}
	}
	if sameDir(filepath.Dir(socket), cfg.Dir) {
		return fmt.Errorf("--socket %s: the manager locks its state directory for itself; name a socket in another one, "+
			"which may be below it", socket)
	}
	if err := control.Check(socket, group, made); err != nil {
		return systemError(err)
	}
	return f.doors.checkFiles(cfg.Dir)
}

// sameDir reports whether two paths are those of one directory. It may be missing.
func sameDir(a, b string) bool {
	one, err := os.Stat(a)
	other, otherErr := os.Stat(b)
	if err == nil && otherErr == nil {
		return os.SameFile(one, other)
	}
	a, err = filepath.Abs(a)
	b, otherErr = filepath.Abs(b)
	return err == nil && otherErr == nil && a == b
}

// sizeOf describes the VMs of a manager.
func sizeOf(vms *instance.Group, embedded bool) string {
	if embedded {
		return "a VM embedded in this program"
	}
	slots := 0
	for _, in := range vms.Instances() {
		slots += in.Capacity
	}
	return plural.Count(len(vms.Instances()), "VM") + ", " + plural.Count(slots, "slot")
}

// groupsText describes the groups of VMs that come and go.
func groupsText(groups groupfile.Groups) (text string) {
	for _, g := range groups {
		text += fmt.Sprintf(", group %s with at most %s", g.Exec.Group, plural.Count(g.Policy.MaxInstances, "VM"))
	}
	return text
}

// place is the Config.Place of the manager.
func (f *managerFlags) place(own *place.Spec) (place.Description, error) {
	return placeOf(&f.imageFlags, &f.podFlags, own)
}

// serve runs a manager until ctx ends or the manager loses its state.
func (f *managerFlags) serve(
	ctx context.Context, group int, counts *metrics.Metrics, open *tcpDoors, cfg manager.Config,
) error {
	if f.socket == "" {
		f.socket = ownSocket()
		if err := makeSocketDir(f.socket); err != nil {
			return systemError(err)
		}
	}
	m, err := manager.Open(ctx, cfg)
	if err != nil && endsignal.Code(ctx) != 0 {
		return nil // it was told to end
	}
	if err != nil {
		return systemError(err)
	}
	listener, err := control.Listen(f.socket, group) //nolint:contextcheck // it waits some seconds for a lock
	served := make(chan error, 3)
	stopDoors := func() {}
	if err == nil {
		if stopDoors, err = open.serve(ctx, m, f.socket, cfg, counts.Handler(), served); err != nil {
			_ = listener.Close() // it cannot be used
		}
	}
	if err == nil {
		defer stopDoors()
		counts.WatchBacklog(m.Backlog) //nolint:contextcheck // each scrape has a time of its own
		cfg.Logger.Info("manager listens", "socket", f.socket, "state", cfg.Dir)
		notify("READY=1")
		go func() { served <- m.Serve(ctx, listener) }() // ends with the manager
		select {
		case <-ctx.Done():
		case <-m.Done():
			err = m.Err()
		case err = <-served:
		}
		notify("STOPPING=1")
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), managerStop)
	defer cancel()
	stopped := m.Shutdown(stopping)
	if endsignal.Code(ctx) != 0 && err == nil {
		return systemError(stopped)
	}
	return systemError(errors.Join(err, stopped))
}

// makeSocketDir makes the directory of a default socket. Members of the group may enter the directory of root's socket.
func makeSocketDir(socket string) (err error) {
	switch dir := filepath.Dir(socket); {
	case dir == control.Dir():
		return control.MakeDir(dir)
	case socket == systemSocket:
		err = os.MkdirAll(dir, 0o755)
	default:
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make the directory of the socket: %w", err)
	}
	return nil
}

// groupID returns the numeric id of a group.
func groupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil && id >= 0 {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}
