package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// Config is the configuration of a Provider.
type Config struct {
	// Group holds the instances. Required.
	Group *Group
	// Route selects how the builds' step runners are started and reached. If empty, connector.Auto.
	Route connector.Route
	// Bootstrap are programs that may be uploaded to an instance whose step runner is missing or cannot be used; see
	// connector.Config. If empty, nothing is uploaded.
	Bootstrap []*program.Binary
	// Docker is the address of each instance's Docker daemon, as seen from the instance, for builds in containers.
	// The login user must be allowed to open its socket.
	Docker docker.Address
	// ContainerPrograms are programs for the containers and pods of builds; the one for the image's or node's
	// platform is used.
	ContainerPrograms []*program.Binary
	// Version is the version of this program. A warning is logged if an instance has another version. If empty,
	// versions are not compared.
	Version string
	// DialTimeout bounds the dial of one connection (TCP, handshake, login), with its retries. If zero, 30s.
	DialTimeout time.Duration
	// ConnectWait is how long a build waits for instances that refuse connections or do not answer, as they do while they
	// start or have too many logins: so long it is tried again, on the instance that takes it first. A refused login or
	// a wrong host key ends the wait. If zero, a build fails when it could not reach three instances.
	ConnectWait time.Duration
	// IdleTimeout is how long a connection without builds is kept. If zero, 5m. If negative, for ever.
	IdleTimeout time.Duration
	// MaxAge is the age at which a connection takes no new builds; it closes when its last build has ended. If zero,
	// off.
	MaxAge time.Duration
	// ReadyTimeout bounds the wait for a build's steps serve. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds the wait for its end. If zero, 20s.
	StopTimeout time.Duration
	// LogTimeout bounds one write to a build's Log. If a write takes longer, the build ends with a system failure. If
	// zero, 5m.
	LogTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL for scripts and commands that are stopped. The wait for their end
	// is at most a second longer. If zero, 10s.
	Grace time.Duration
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
	// Trace holds hooks for the builds' step runners. It may be nil.
	Trace *connector.Trace
	// ConnTrace holds hooks for connections whose instance or jump host has no Trace of its own. It may be nil.
	ConnTrace *mux.Trace
	// DialStart is called before each attempt to connect to an instance or jump host, DialDone with its outcome.
	// attempt counts from 1. Retired is called when a connection has left service; see CloseReason. They may be nil,
	// and are called from many goroutines at once.
	DialStart func(id string, attempt int)
	DialDone  func(id string, attempt int, took time.Duration, err error)
	Retired   func(id string, cause error)
}

// Provider makes executors for builds and owns the connections that they share, one per instance and one per jump
// host. Shutdown and Close end them. It is safe for concurrent use.
type Provider struct {
	cfg   Config
	conns *connections[*mux.Conn]
}

// NewProvider returns a Provider. It does not connect yet. The caller calls Shutdown or Close.
func NewProvider(cfg Config) (*Provider, error) {
	if cfg.Group == nil {
		return nil, errors.New("instance: Config.Group is nil")
	}
	if min(cfg.DialTimeout, cfg.ConnectWait, cfg.MaxAge, cfg.ReadyTimeout, cfg.StopTimeout, cfg.LogTimeout,
		cfg.Grace) < 0 {
		return nil, errors.New("instance: a time in Config is negative")
	}
	if _, err := connector.ParseRoute(string(cmp.Or(cfg.Route, connector.Auto))); err != nil {
		return nil, fmt.Errorf("instance: Config.Route: %w", err)
	}
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 30*time.Second)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, 20*time.Second) // the graces of a job and a step runner, and their clean-up
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.DialStart == nil {
		cfg.DialStart = func(string, int) {}
	}
	p := &Provider{cfg: cfg}
	dial := func(ctx context.Context, h *host, via *pool.Lease[*mux.Conn], wait func()) (*mux.Conn, error) {
		patience := min(patience<<min(cfg.Group.healthOf(h).failures, 10), cfg.DialTimeout)
		if via == nil && h.ssh.DialNet == nil && cfg.Group.isAwaited(h.id) {
			hasty := *h
			hasty.ssh.DialNet, patience = dialHastily, 0
			h = &hasty
		}
		return connect(ctx, h, via, cmp.Or(h.ssh.Trace, cfg.ConnTrace), patience, wait)
	}
	conns := &connections[*mux.Conn]{
		group: cfg.Group, connect: dial, timeout: cfg.DialTimeout, start: cfg.DialStart, done: p.logDial,
	}
	p.conns = conns.open(pool.Config[*mux.Conn]{IdleTimeout: cfg.IdleTimeout, MaxAge: cfg.MaxAge, Retired: p.logRetired})
	cfg.Group.provide(p.retire, cfg.ConnectWait)
	return p, nil
}

// logDial logs the outcome of an attempt to connect. The first failure of a dial is a warning if others follow: the
// last failure is in the errors of the builds that waited. Builds that wait for a host dial it again and again: the
// failures after the first dial's are no warnings.
func (p *Provider) logDial(id string, attempt int, took time.Duration, err error) {
	if err != nil {
		level := slog.LevelInfo
		if attempt == 1 && !errors.Is(err, pool.ErrClosed) && !isPermanent(err) && !p.cfg.Group.awaits(id) {
			level = slog.LevelWarn
		}
		p.cfg.Logger.Log(context.Background(), level, "not connected",
			"instance", id, "attempt", attempt, "took", took, "error", err)
	} else {
		p.cfg.Logger.Info("connected", "instance", id, "attempt", attempt, "took", took)
	}
	if p.cfg.DialDone != nil {
		p.cfg.DialDone(id, attempt, took, err)
	}
}

// retire takes the connection of an instance or jump host out of service. It is closed with its last lease.
func (p *Provider) retire(id string, cause error) {
	level := slog.LevelInfo
	if errors.Is(cause, outOfServiceError(UsedUp)) {
		level = slog.LevelWarn // not requested by an operator
	}
	p.cfg.Logger.Log(context.Background(), level, "connection is to be closed", "instance", id, "reason", cause)
	p.conns.pool.Retire(pool.Key(id), cause)
}

// logRetired logs why a connection has left service, and tells the group if it has died.
func (p *Provider) logRetired(key pool.Key, cause error) {
	p.cfg.Logger.Info("connection leaves service", "instance", key, "reason", cause)
	if died := (*mux.ConnError)(nil); errors.As(cause, &died) {
		p.cfg.Group.lost(string(key), cause)
	}
	if p.cfg.Retired != nil {
		p.cfg.Retired(string(key), cause)
	}
}

// Build describes a build to its executor.
type Build struct {
	// ID names the build, uniquely among running builds: 1 to 64 characters of A-Z a-z 0-9 . _ -.
	// Required.
	ID string
	// Log is the build's log. A [buildlog.Log] writes to it: one write at a time, with the step runner's own lines
	// marked. If Log fails or blocks, its build ends, and no other. If nil, the log is discarded.
	Log io.Writer
	// Linger is how long the build may outlive its connection, at most 24h: its step runner continues, and the build
	// reconnects to it. After that time the build is lost, which is a system failure; it is not started again. Zero:
	// the build ends with its connection. If nil, the instance's Linger.
	//
	// With a linger, scripts and commands (Executor.Run, Client.Run) are jobs of a step runner on the instance. It
	// must be a stepmux, otherwise they fail before they start. Their text or standard input is at most 8 MiB, they
	// run for at most 24 h, and get no variables of the login's environment that look like secrets. Connections to
	// commands and addresses (Client.DialRun, DialCommand and Dial) end with the connection nevertheless.
	Linger *time.Duration
	// Secret is the secret of the build's step runner: 43 to 128 random characters of A-Z a-z 0-9 - _. If empty, a
	// new one is made. Another process needs it for [Executor.Resume].
	Secret string
	// LogState is the position of the log in the process that had the build before, for Resume; see
	// buildlog.StateWriter. Zero for a new build.
	LogState buildlog.State
	// Since is when the build got its slot in the process that had it before, for Resume and Occupy. If zero, now.
	Since time.Time
	// Placed is called when the build gets a slot on an instance, and again if it moves to another one. May be nil.
	Placed func(instance string)
	// Shell is the command that runs the build's shell scripts. If empty, bash.
	Shell []string
	// Place describes where the build's steps run: a *docker.Spec for a container of the instance's Docker daemon, or a
	// *kubernetes.Spec for a pod. An instance that is a Cluster needs a pod, and no other takes one. A build in a pod
	// always lingers: for kubernetes.DefaultLinger, unless Linger or the instance sets another time. If nil, the steps run
	// on the instance itself.
	Place place.Description
	// Timeout is the timeout of the build's job, for the pod's deadline. If zero, there is none.
	Timeout time.Duration
	// On is the ID of the only instance that may run the build. Labels must all be labels of its instance. If empty,
	// any instance. The build fails if no instance matches.
	On     string
	Labels map[string]string
	// Party is on whose behalf the build waits for a slot; see [Group.SetShares].
	Party string
}

// Executor returns the executor of b. It does no I/O. The caller always calls Cleanup at the end.
func (p *Provider) Executor(b Build) *Executor {
	e := &Executor{provider: p, build: b, log: buildlog.New(b.Log, p.cfg.LogTimeout)}
	e.log.Restore(b.LogState)
	e.life, e.end = context.WithCancelCause(context.Background())
	e.start.GoOn = true
	return e
}

// Dial connects to an instance outside the pool, in order to examine it, through the pooled connections of its jump
// hosts. trace, if not nil, replaces the configured one. The caller closes the connection before the Provider. Errors
// are those of mux.Dial, or wrap ErrUnknown.
func (p *Provider) Dial(ctx context.Context, id string, trace *mux.Trace) (*mux.Conn, error) {
	h, err := p.cfg.Group.findHost(id)
	if err != nil {
		return nil, err
	}
	via, err := p.conns.leaseVia(ctx, h)
	if err != nil {
		return nil, err
	}
	return connect(ctx, h, via, cmp.Or(trace, h.ssh.Trace, p.cfg.ConnTrace), 0, func() {})
}

// Reach connects to an instance, also to one that takes no builds, and leaves the connection to the next builds.
func (p *Provider) Reach(ctx context.Context, id string) error {
	lease, err := p.conns.Acquire(ctx, pool.Key(id))
	if err != nil {
		return err
	}
	lease.Release()
	return nil
}

// Add adds an instance to the Group's set. Its errors are those of Group.Update. After the first Add or Remove,
// builds wait even while no instance takes any: another may be added.
func (p *Provider) Add(in Instance) error { return p.cfg.Group.add(in) }

// Remove takes an instance out of the Group's set because the VM is gone, or will be. It takes no new builds, its
// connection closes with the last running build, and its learned host key is forgotten. (A build that has its
// connection but no step runner yet goes elsewhere.) A later VM at the same address is another one and needs
// another ID.
// An instance that is also a jump host with an address stays as that, and its key is kept. Remove returns an error if
// other instances name it as their jump host by ID alone. ctx bounds the wait for other processes that use the same
// file of host keys.
func (p *Provider) Remove(ctx context.Context, id string) error {
	was, needed, err := p.cfg.Group.remove(id)
	if err != nil || needed {
		return err
	}
	if err := was.SSH.HostKeys.Forget(ctx, id); err != nil {
		return fmt.Errorf("remove instance %s: forget its host key: %w", id, err)
	}
	return nil
}

// Shutdown refuses new builds, waits until the running ones have been cleaned up, then closes all connections. If ctx
// ends first, it closes them at once and returns ctx's cause. Builds in pods have connections of their own: Shutdown
// and Close neither refuse them nor wait for them nor end them, so call Cleanup of these first.
func (p *Provider) Shutdown(ctx context.Context) error { return p.conns.pool.Shutdown(ctx) }

// Close closes all connections now, even those with running builds, and waits for the Provider's goroutines.
// Idempotent.
func (p *Provider) Close() error { return p.conns.pool.Close() }
