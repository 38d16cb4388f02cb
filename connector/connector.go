package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/hooks"
	"github.com/stepmux/stepmux/internal/limits"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

const (
	defaultTempDir      = "/tmp"
	defaultReadyTimeout = 30 * time.Second
	defaultStopTimeout  = 20 * time.Second
	// maxLeashGrace bounds the time between SIGTERM and SIGKILL for a serve that we must end.
	maxLeashGrace = 10 * time.Second
)

// DefaultRunner is the step runner's command if the configuration has no other.
var DefaultRunner = []string{"stepmux"}

// Conn is the connection to a VM. An SSH connection (*mux.Conn) is one. Two Conns are equal if they are the same
// connection.
type Conn interface {
	// Start, TryReserve and Reserve use sessions of their own; StartSpare uses one that no other call waits for.
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
	Reserve(ctx context.Context, n int) (*mux.Reservation, error)
	TryReserve(ctx context.Context, n int) (*mux.Reservation, error)
	StartSpare(ctx context.Context, cmd mux.Command) (*mux.Spare, error)
	// DialUnix connects to a unix socket on the VM.
	DialUnix(ctx context.Context, path string) (*mux.Stream, error)
	// Relay returns the relay that cmd starts, started if it does not run.
	Relay(ctx context.Context, cmd mux.Command) (*relay.Relay, error)
}

// Lease is a build's share of its VM's connection.
type Lease interface {
	Conn() Conn
	Release()
}

// Config names the build of a Connector, its VM and its step runner.
type Config struct {
	// Lease is the build's share of the VM's connection. Required. New takes it over: Close releases it.
	Lease Lease
	// VM remembers facts about the VM, shared by all its builds. Required.
	VM *VM
	// BuildID names the build, uniquely on the VM: 1 to 64 characters of A-Z a-z 0-9 . _ -, not "." or
	// "..". Required.
	BuildID string
	// Runner is the step runner's command on the VM: a stepmux, or a gitlab-runner or step-runner, which is
	// then driven by its own protocol. If empty, DefaultRunner, or one of the others if that is missing.
	Runner []string
	// Bootstrap are programs for various platforms. The one for the VM's platform is put on the VM, in a directory
	// of the user's, if the runner is missing there, cannot be executed, is for another platform or too old for a
	// relay. If empty, nothing is put there.
	Bootstrap []*program.Binary
	// Version is that of this program. If the VM's is another, a warning is logged. If empty, never.
	Version string
	// TempDir is the VM's directory for temporary files, below which the build's socket directory is
	// made. If empty, /tmp.
	TempDir string
	// Route is how serve is started and its socket reached. If empty, Auto.
	Route Route
	// Isolation is how far the build is held apart from the rest of the VM: auto, off, processes or private. If empty,
	// auto: the best that can be had there. A level that is named is had, or the build fails.
	Isolation string
	// BuildUser is the user for the build where the login is root: the name of a user of the VM, or a range of ids,
	// FIRST-LAST, of which each build has one of its own. If empty, the login.
	BuildUser string
	// Limits bound all processes of the build together. They are had, or the build fails.
	Limits limits.Build
	// ServeArgs are more arguments for serve, such as --require-pinned. Its stepmux must know them.
	ServeArgs []string
	// Log receives the output of the build's serve. A *buildlog.Log is the caller's to close; any other Writer is
	// wrapped in one, with LogTimeout. If nil the output is discarded.
	Log io.Writer
	// LogTimeout is how long Log, and the trace of Execute, may take for one write before that ends the build, if
	// they are no *buildlog.Log. If zero, 5m.
	LogTimeout time.Duration
	// ReadyTimeout bounds the wait for serve to listen, and for the answer of a runner that is asked for its
	// version. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds the wait for serve to be gone at the end; it includes the grace its jobs get.
	// If zero, 20s.
	StopTimeout time.Duration
	// Linger lets the build outlive its link: for so long, at most 24h, the step runner goes on while no manager is
	// attached, and the Connector tries to come back. The VM needs a stepmux that knows this. If zero, the build ends
	// with its connection.
	Linger time.Duration
	// Secret is the secret of the build's step runner, 43 to 128 characters of A-Z a-z 0-9 - _, at random. If empty, a new
	// one is made. Who knows it can attach to a build that lingers.
	Secret string
	// Attach is the socket of a step runner of this build that another Connector has started, as its Socket method told.
	// Connect then attaches to that one and starts none. Needs Linger and Secret.
	Attach string
	// Reconnect returns another lease on the VM's connection, dialed anew if the last one has ended. It returns when it
	// has one, when ctx ends, or when it is hopeless for now; with [ErrGone] it is for ever. Required with Linger.
	Reconnect func(ctx context.Context) (Lease, error)
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
	// Trace is told the build's events. New copies it. May be nil.
	Trace *Trace
}

// Connector joins one build to its step runner. One goroutine copies serve's stdout and watches for its end; one may
// start its proxy beside serve, and one prestarts a serve and a proxy for the next build. Close waits for all. It is
// safe for concurrent use. With Config.Linger one more goroutine keeps the build attached.
type Connector struct {
	cfg      Config
	socket   string // asked for; serve may report another
	secret   wire.Secret
	log      *buildlog.Log
	closeLog func(context.Context)
	linger   *lingering  // nil without Config.Linger
	leaves   atomic.Bool // Close leaves the build to another manager
	wg       sync.WaitGroup

	life     context.Context // ends with the build's ctx, with serve, or at Close
	end      context.CancelCauseFunc
	deadline context.Context // ends when Close waits for nothing any more
	giveUp   context.CancelFunc

	mu        sync.Mutex    // guards the following
	connected chan struct{} // nil before Connect; closed when it returns
	build     *build        // nil before the build has its plan and its sessions
	lease     Lease         // Config.Lease, or that of a later link
	left      []string      // see Left
	isolation program.Isolation
	usage     program.Usage

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error
}

// New returns a Connector for one build. It does no I/O. The caller calls Close, which also releases
// the lease; when New fails, the lease is still the caller's.
func New(cfg Config) (*Connector, error) {
	switch {
	case cfg.Lease == nil:
		return nil, errors.New("connector: Config.Lease is nil")
	case cfg.VM == nil:
		return nil, errors.New("connector: Config.VM is nil")
	case cfg.Linger < 0 || cfg.Linger > wire.MaxLinger:
		return nil, fmt.Errorf("a build cannot linger for %v: 0 to %v", cfg.Linger, wire.MaxLinger)
	case cfg.Linger > 0 && cfg.Reconnect == nil:
		return nil, errors.New("connector: Config.Linger without Config.Reconnect")
	}
	id, err := wire.ParseBuildID(cfg.BuildID)
	if err != nil {
		return nil, err
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	socket, err := wire.SocketPath(cfg.TempDir, id)
	if err != nil {
		return nil, err
	}
	secret := wire.NewSecret()
	if cfg.Secret != "" {
		if secret, err = wire.ParseSecret(cfg.Secret); err != nil {
			return nil, err
		}
	}
	if cfg.Attach != "" {
		switch {
		case cfg.Linger == 0 || cfg.Secret == "":
			return nil, errors.New("connector: Config.Attach without Linger and Secret")
		case wire.CheckSocketPath(cfg.Attach) != nil || !wire.SameBuildSocket(socket, cfg.Attach):
			return nil, fmt.Errorf("connector: Config.Attach: %.160q is no socket of the build %s", cfg.Attach, id)
		}
	}
	c := &Connector{cfg: cfg, socket: socket, secret: secret, closing: make(chan struct{}), lease: cfg.Lease}
	c.log, c.closeLog = buildlog.Of(cfg.Log, cfg.LogTimeout)
	return c, nil
}

func (cfg *Config) setDefaults() error {
	cfg.TempDir = cmp.Or(cfg.TempDir, defaultTempDir)
	cfg.Route = cmp.Or(cfg.Route, Auto)
	cfg.Log = cmp.Or(cfg.Log, io.Discard)
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, defaultReadyTimeout)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, defaultStopTimeout)
	cfg.Logger = cfg.VM.logs.Logger(cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)))
	trace := *cmp.Or(cfg.Trace, &Trace{})
	hooks.Fill(&trace)
	cfg.Trace = &trace
	if _, err := ParseRoute(string(cfg.Route)); err != nil {
		return err
	}
	_, err := ParseIsolation(cfg.Isolation)
	if err == nil {
		err = CheckBuildUser(cfg.BuildUser)
	}
	return err
}

// runner returns the step runner's command.
func (cfg *Config) runner() []string {
	if len(cfg.Runner) == 0 {
		return DefaultRunner
	}
	return cfg.Runner
}

// search returns the configuration to find the VM's step runner.
func (cfg *Config) search(conn Conn) program.Config {
	s := program.Config{
		Conn:      conn,
		Runner:    cfg.runner(),
		Others:    len(cfg.Runner) == 0,
		Bootstrap: cfg.Bootstrap,
		TempDir:   cfg.TempDir,
		Shared:    cfg.BuildUser != "",
		Timeout:   cfg.ReadyTimeout,
		Logger:    cfg.Logger,
	}
	switch cfg.Route {
	case Relay:
		s.Relay = program.OnlyRelay
	case Session, Streamlocal:
		s.Relay = program.NoRelay
	case Auto:
	}
	return s
}

// Connect starts the build's step runner and returns a function that opens bridges to it; each call
// of that gives a new one, which its caller closes. Calls over them carry the build's Credentials. ctx is the build's
// life: when it ends, bridges fail and the build is over. Connect may be called once.
//
// It returns ctx.Err() when ctx ends first, a [*ServeError] when serve ends or does not listen in
// time, a [*mux.ConnError] when the connection is lost. Close stops the processes that a failed Connect has started.
func (c *Connector) Connect(ctx context.Context) (func() (io.ReadWriteCloser, error), error) {
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	defer close(c.connected)
	start := c.start
	if c.linger != nil {
		start = c.linger.start
	}
	b, err := start() //nolint:contextcheck // the life it uses is made of ctx
	if err != nil {
		// If the build's life has ended, that is the reason, whatever failed because of it.
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		c.end(err)
		return nil, err
	}
	return func() (io.ReadWriteCloser, error) { return b.bridge() }, nil //nolint:contextcheck // its life is the build's
}

func (c *Connector) begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isDone(c.closing) {
		return ErrClosed
	}
	if c.connected != nil {
		return errors.New("connector: Connect called twice")
	}
	c.connected = make(chan struct{})
	c.life, c.end = context.WithCancelCause(ctx)
	c.deadline, c.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	if c.cfg.Linger > 0 {
		c.linger = newLingering(c)
	}
	forget := c.log.OnFailure(c.end)
	context.AfterFunc(c.life, func() { forget() }) //nolint:contextcheck // it takes none
	return nil
}

// isDone reports whether done is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// current returns the build, nil before it has its plan, and whether Connect has returned.
func (c *Connector) current() (b *build, connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.build, c.connected != nil && isDone(c.connected)
}

// currentLease returns the lease of the present link.
func (c *Connector) currentLease() Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lease
}

// Choice returns the routes the build takes.
func (c *Connector) Choice() Choice {
	if b, _ := c.current(); b != nil {
		return b.routes()
	}
	return Choice{}
}

// Socket returns the socket of the build's step runner on the VM, empty before Connect has succeeded. Another Connector
// can attach there: see Config.Attach.
func (c *Connector) Socket() string {
	if b, _ := c.current(); b != nil && b.serve != nil && b.serve.ready.Load() {
		return b.serve.socket
	}
	return ""
}

// Leave lets Close end nothing on the VM: the build of a Connector with Config.Linger goes on there until another
// Connector attaches to it, or its linger is over. Without Linger it does nothing.
func (c *Connector) Leave() { c.leaves.Store(true) }

// Close ends the build's presence on the VM: bridges first, then serve, then the lease. It waits until serve is seen
// gone, at most until ctx ends or StopTimeout has passed; then it gives up and returns an error. [Connector.Left] then
// tells what may be left. When it returns nothing more is written to Log, with the exception that [buildlog.Log.Close]
// names. Calls of Connect and of bridges that wait return ErrClosed or the channel's end. Close is idempotent: later
// calls wait for the first and return its result.
func (c *Connector) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		close(c.closing)
		connected := c.connected
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)
		defer cancel()
		defer c.closeLog(ctx)
		defer func() { c.currentLease().Release() }()
		if connected == nil {
			return
		}
		c.end(ErrClosed)
		<-connected // soon: the life that just ended bounds all its waits
		defer context.AfterFunc(ctx, c.giveUp)()
		if b, _ := c.current(); b != nil {
			c.closeErr = b.stop(ctx)
		}
		if c.linger != nil {
			c.linger.close()
		}
		if c.closeErr != nil {
			c.giveUp()
		}
		c.wg.Wait()
		c.giveUp()
	})
	return c.closeErr
}
