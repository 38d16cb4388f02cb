package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

// leashGrace is how long a job may clean up after SIGTERM when its manager, or the link to it, is gone: the container
// is to be gone within 2 s. It holds neither for a build that is cancelled or times out, whose job has a grace of its
// own, nor for one that lingers, nor in a container that was there before.
const leashGrace = time.Second

// Config describes a build's container and the daemon that runs it.
type Config struct {
	// Config describes the build. ReadyTimeout bounds the start of the container, too, without the pull and without the
	// wait for other containers that the Daemon is about to start. With a Linger the container ends with its step runner,
	// and Reconnect makes another link to it.
	place.Config
	// Dial connects to the daemon's socket. Required. The Container calls it until Close has returned.
	Dial func(ctx context.Context) (net.Conn, error)
	// Daemon remembers facts about that daemon, shared by all its builds. Required.
	Daemon *Daemon
	// Spec describes the container.
	Spec Spec
}

// Container is a build's container, with the step runner's relay in it. It is the connection, and the lease,
// of the build's connector.Connector. One goroutine waits for its end. It is safe for concurrent use.
type Container struct {
	cfg     Config
	api     *api
	name    string // of the container, of the network, and on the labels of all objects
	id      string // empty before it was created
	network string // of the services; empty without services
	image   picture
	program string // the step runner's path in the container
	tempDir string
	entered string       // ID of a container that was there already; empty otherwise
	again   bool         // it is another link to a container, which Release closes
	relay   *relay.Relay // nil before it has started
	stderr  *stderr
	started time.Time

	mu       sync.Mutex // guards the following
	services []*service
	execs    []string // IDs of the relays' execs, which have started

	wg      sync.WaitGroup
	life    context.Context // ends with Close
	endLife context.CancelFunc
	gone    chan struct{} // closed once the following are set: the container is removed, or lost
	status  int           // exit status of its main process
	lost    error         // why the end is not known

	closeOnce sync.Once
	closeErr  error
	removed   atomic.Bool // by Close
	left      atomic.Bool // Close leaves the container
}

// Start makes and starts a container, and the relay in it. ctx bounds that, and means nothing afterwards. The caller
// closes the Container. When Start fails nothing of the container is left, unless the error says so.
func Start(ctx context.Context, cfg Config) (*Container, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c, err := attempt(ctx, cfg)
	if errors.Is(err, errProgramGone) {
		cfg.Daemon.forget()
		c, err = attempt(ctx, cfg)
	}
	return c, err
}

// check checks the configuration and sets its defaults.
func (cfg *Config) check() error {
	switch {
	case cfg.Dial == nil:
		return errors.New("docker: Config.Dial is nil")
	case cfg.Daemon == nil:
		return errors.New("docker: Config.Daemon is nil")
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	return cfg.Spec.Check()
}

// attempt is Start, once.
func attempt(ctx context.Context, cfg Config) (*Container, error) {
	var salt [3]byte
	_, _ = rand.Read(salt[:]) // never fails
	c, err := newContainer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.name = fmt.Sprintf("stepmux-%s-%x", cfg.BuildID, salt)
	err = c.start(ctx)
	if err == nil {
		err = c.startServices(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// newContainer returns a Container without a container.
func newContainer(ctx context.Context, cfg Config) (*Container, error) {
	known, _ := cfg.Daemon.facts.Kept()
	a, err := newAPI(cfg.Dial, known.api, cfg.ReadyTimeout)
	if err != nil {
		return nil, err
	}
	c := &Container{cfg: cfg, api: a, gone: make(chan struct{}), program: place.ProgramFile, stderr: &stderr{}}
	c.life, c.endLife = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// start does the work of Start. It leaves the cleaning up to Close.
func (c *Container) start(ctx context.Context) error {
	daemon, err := c.cfg.Daemon.look(ctx, c.api)
	if err != nil {
		return err
	}
	c.wg.Go(func() { c.reap(c.life) })
	if c.cfg.Spec.Container != "" {
		return c.enter(ctx, daemon)
	}
	if daemon.podman {
		return errors.New("podman does not let a client attach to a container before its start: start one with " +
			"podman and name it by --container")
	}
	if c.image, err = c.findImage(ctx, c.cfg.Spec.Image); err != nil {
		return err
	}
	if want := cmp.Or(c.cfg.Spec.Platform, daemon.platform); !isOf(want, c.image.platform) {
		return fmt.Errorf("image %.160q is for %.40s, and not for %.40s: use an image for that, or --platform %.40s if the "+
			"Docker daemon's machine can run it", c.cfg.Spec.Image, c.image.platform, want, c.image.platform)
	}
	c.cfg.Say("image %.160s is %s", c.cfg.Spec.Image, c.Image())
	bin, err := c.programFor(c.image.platform)
	if err != nil {
		return err
	}
	volume, err := c.fill(ctx, bin, c.image.id)
	if err != nil {
		return full(err)
	}
	done, err := c.cfg.Daemon.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout,
		fmt.Errorf("the container was not ready within %v", c.cfg.ReadyTimeout))
	defer cancel()
	whole, end := c.whole(ctx)
	defer end()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := c.createNetwork(whole); err != nil {
		return err
	}
	if err := c.create(whole, volume); err != nil {
		return full(err)
	}
	return c.run(ctx)
}

// whole returns a context for calls that make something on the daemon, which is not cancelled with ctx: the daemon
// might make it all the same, and only its answer tells us the name under which to remove it.
func (c *Container) whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), c.cfg.ReadyTimeout,
		fmt.Errorf("the Docker daemon did not answer within %v", c.cfg.ReadyTimeout))
}

// create makes the container.
func (c *Container) create(ctx context.Context, volume string) error {
	spec := &c.cfg.Spec
	host := &container.HostConfig{
		AutoRemove:     true, // also if this process has ended
		LogConfig:      container.LogConfig{Type: "none"},
		NetworkMode:    container.NetworkMode(cmp.Or(c.network, spec.Network)),
		ReadonlyRootfs: spec.ReadOnly,
		Mounts:         []mount.Mount{programMount(volume, true)},
		Binds:          spec.Volumes,
		ExtraHosts:     spec.Hosts,
		Tmpfs:          map[string]string{},
		Resources:      spec.resources(),
	}
	for _, text := range spec.Tmpfs {
		at, options, _ := strings.Cut(text, ":")
		host.Tmpfs[at] = options
	}
	c.chooseDir()
	if spec.ReadOnly {
		host.Tmpfs[place.RunDir] = "mode=1777,exec"
	}
	argv := c.command()
	switch {
	case len(spec.Entrypoint) > 0:
		argv = program.Wrapped(spec.Entrypoint, argv)
	case spec.KeepEntrypoint:
		argv = program.Wrapped(c.image.entrypoint, argv)
	}
	made, err := c.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: c.name,
		Config: &container.Config{
			Image: c.image.id, User: spec.User, Labels: c.labels(spec.Image),
			Entrypoint: argv[:1], Cmd: argv[1:],
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // it would check the image's own program
			AttachStdin: true, AttachStdout: true, AttachStderr: true, OpenStdin: true, StdinOnce: true,
		},
		HostConfig: host, Platform: spec.platform(),
	})
	if err != nil {
		return c.api.failure(ctx, fmt.Sprintf("create container of image %.160q", spec.Image), err)
	}
	c.id = made.ID
	for _, text := range made.Warnings {
		c.cfg.Logger.Warn("the Docker daemon warns", "says", (&daemonError{errors.New(text)}).Error())
	}
	if spec.ReadOnly || c.tempDir == place.Home {
		return nil
	}
	_, err = c.api.CopyToContainer(ctx, c.id, client.CopyToContainerOptions{
		DestinationPath: "/", Content: bytes.NewReader(runDirArchive()),
	})
	if err != nil {
		return c.api.failure(ctx, "make the directory of the step runner in the container", err)
	}
	return nil
}

// chooseDir chooses where the step runner's files are in the container.
func (c *Container) chooseDir() {
	c.tempDir = place.RunDir
	if spec := &c.cfg.Spec; !spec.ReadOnly && isRoot(cmp.Or(spec.User, c.image.user)) {
		c.tempDir = place.Home // the mount of the program makes it
	}
}

// command is the command line of the relay.
func (c *Container) command() []string {
	argv := []string{c.program, "steps", "relay", "--temp-dir", c.tempDir}
	switch {
	case c.entered != "":
		return argv
	case c.cfg.Linger > 0:
		return append(argv, "--stay")
	default:
		return append(argv, "--grace", leashGrace.String())
	}
}

// runDirArchive returns a tar archive of place.RunDir, in which any user of the container may make files.
func runDirArchive() []byte {
	var text bytes.Buffer
	archive := tar.NewWriter(&text)
	// Neither fails: the text is in memory, and the headers are valid.
	_ = writeDirs(archive, map[string]int64{place.Home: 0o755, place.RunDir: 0o1777})
	_ = archive.Close()
	return text.Bytes()
}

// run attaches to the container, starts it and exchanges hellos with the relay in it. We attach first, so that nothing
// that the relay says is lost, and its stdin is never without us.
func (c *Container) run(ctx context.Context) error {
	op := fmt.Sprintf("start container of image %.160q", c.cfg.Spec.Image)
	stream, err := c.api.ContainerAttach(ctx, c.id, client.ContainerAttachOptions{
		Stream: true, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	carrier := &attached{stream: stream.HijackedResponse, stderr: c.stderr}
	c.await(ctx, c.id, container.WaitConditionRemoved)
	c.started = time.Now()
	if _, err := c.api.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		_ = carrier.Close() // always nil
		return c.api.failure(ctx, op, c.missing(err))
	}
	err = c.connect(ctx, carrier, func(ctx context.Context) error {
		select {
		case <-c.gone:
			if c.status != 0 {
				return &channel.ExitError{Status: c.status}
			}
		case <-ctx.Done():
		}
		return nil
	})
	if err == nil {
		return nil
	}
	err = c.explain(ctx, fmt.Errorf("%s: %w", op, err))
	if spec := &c.cfg.Spec; spec.KeepEntrypoint || len(spec.Entrypoint) > 0 {
		err = fmt.Errorf("%w (its entrypoint must become the command that it gets, as by exec \"$@\", and be quiet)", err)
	}
	return err
}

// missing marks an error that says that the program is no longer at its place.
func (c *Container) missing(err error) error {
	if strings.Contains(err.Error(), c.program+": no such file") {
		return fmt.Errorf("%w: %w", errProgramGone, err)
	}
	return err
}

// connect exchanges hellos with the relay at the other end of carrier. exit waits for its end.
func (c *Container) connect(ctx context.Context, carrier *attached, exit func(context.Context) error) (err error) {
	c.relay, err = relay.New(ctx, carrier, relay.Config{
		Stderr: c.stderr.tail.String, Exit: exit, Leftover: c.wg.Go,
	})
	return err
}

// Configure makes the container the place of a Connector's step runner: it sets Lease, VM, Runner, TempDir, Route and
// Bootstrap. Close the Connector before the Container.
func (c *Container) Configure(cfg *connector.Config) {
	cfg.Lease, cfg.VM = c, &connector.VM{}
	cfg.Runner, cfg.TempDir, cfg.Route, cfg.Bootstrap = []string{c.program}, c.tempDir, connector.Relay, nil
}

// Image returns the image's digest: NAME@DIGEST if a registry has it, else the daemon's own.
func (c *Container) Image() string { return cmp.Or(c.image.digest, c.image.id) }

// Containers implements place.Place. The network of a container that was there already is not known.
func (c *Container) Containers() map[string]any {
	in := c.network
	if c.entered == "" {
		in = cmp.Or(in, c.cfg.Spec.Network, network.NetworkBridge)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	services := map[string]string{}
	for _, s := range c.services {
		services[s.Host()] = s.id
	}
	return place.Describe(c.At(), in, services)
}

// labels mark an object of the build, made from an image.
func (c *Container) labels(image string) map[string]string {
	labels := map[string]string{}
	for _, text := range c.cfg.Spec.Labels {
		key, value, _ := strings.Cut(text, "=")
		labels[key] = value
	}
	labels[labelBuild], labels[labelGroup], labels[labelImage] = c.cfg.BuildID, c.name, image
	labels[labelManager] = thisProcess()
	return labels
}
