package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/hooks"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	defaultReadyTimeout = 30 * time.Second
	defaultStopTimeout  = 20 * time.Second
	// maxLeashGrace bounds the time between SIGTERM and SIGKILL for a serve that a leashWrapper ends.
	maxLeashGrace = 10 * time.Second
)

// DefaultRunner is the step runner's command if Config.Runner is empty.
var DefaultRunner = []string{"stepmux"}

// Conn is the connection to a VM, such as a *mux.Conn. Two Conns are equal if they are the same connection.
type Conn interface {
	// Start, TryReserve and Reserve use sessions of their own; StartSpare uses a session that no other call waits
	// for.
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
	Reserve(ctx context.Context, n int) (*mux.Reservation, error)
	TryReserve(ctx context.Context, n int) (*mux.Reservation, error)
	StartSpare(ctx context.Context, cmd mux.Command) (*mux.Spare, error)
	// DialUnix connects to a unix socket on the VM.
	DialUnix(ctx context.Context, path string) (*mux.Stream, error)
	// Relay returns the relay that runs cmd, and starts it if it does not run yet.
	Relay(ctx context.Context, cmd mux.Command) (*relay.Relay, error)
}

// Lease is a build's share of its VM's connection.
type Lease interface {
	Conn() Conn
	Release()
}

// Config describes a build, its VM and its step runner.
type Config struct {
	// Lease is the build's share of the VM's connection. Required. New takes it over: Close releases it.
	Lease Lease
	// VM remembers facts about the VM, shared by all its builds. Required.
	VM *VM
	// BuildID names the build, uniquely on the VM: 1 to 64 characters of A-Z a-z 0-9 . _ -, not "." or
	// "..". Required.
	BuildID string
	// Runner is the step runner's command on the VM: a stepmux, or GitLab's gitlab-runner or step-runner, which is
	// driven by its own protocol. If empty, DefaultRunner, or one of GitLab's if that is missing.
	Runner []string
	// Bootstrap are programs for various platforms. If the runner is missing on the VM, cannot be executed, is for
	// another platform, or is too old for a relay, the program for the VM's platform is uploaded into a directory of
	// the user. If empty, nothing is uploaded.
	Bootstrap []*program.Binary
	// Version is the version of this program. If the VM's differs, a warning is logged. If empty, never.
	Version string
	// Options are the options of the VM. All builds of a connection should have the same TempDir: each takes a relay, and
	// so a session, of its own. With Linger the Connector tries to reconnect.
	vmconfig.Options
	// Route selects how serve is started and its socket reached. If empty, Auto.
	Route Route
	// ServeArgs are additional arguments for serve, such as --require-pinned. The VM's stepmux must know them.
	ServeArgs []string
	// Log receives the output of the build's serve. A *buildlog.Log stays the caller's to close; any other Writer is
	// wrapped in a Log, with LogTimeout. To write the output of Execute to the same Writer, give both one *buildlog.Log,
	// for one job at a time. If nil, the output is discarded.
	Log io.Writer
	// LogTimeout is how long one write to Log, or to the trace of Execute, may take before the build ends. It does
	// not apply to a *buildlog.Log. If zero, 5m.
	LogTimeout time.Duration
	// ReadyTimeout bounds the wait for serve to listen, and for a runner's answer to --version. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds the wait for serve's end in Close, including the grace of its jobs. If zero, 20s.
	StopTimeout time.Duration
	// Secret is the secret of the build's step runner: 43 to 128 random characters of A-Z a-z 0-9 - _. If empty, New
	// makes one. Anybody who knows it can attach to a lingering build.
	Secret string
	// Attach is the socket of a step runner of this build that another Connector has started, as returned by its
	// Socket method, with any TempDir. Connect then attaches to that step runner and does not start another. Needs
	// Linger and Secret.
	Attach string
	// Reconnect returns a new lease on the VM's connection, which is dialed again if it has ended. It returns when it
	// has a lease, when ctx ends, or with an error. During Connect an error ends the Connect; later Reconnect is called
	// again after it, except after [ErrGone]. Required with Linger.
	Reconnect func(ctx context.Context) (Lease, error)
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
	// Trace receives the build's events. New copies it. May be nil.
	Trace *Trace
}

// Connector joins one build to its step runner. It is safe for concurrent use. It owns these goroutines: one copies
// serve's stdout and watches for its end, one may start its proxy beside serve, one prestarts a serve and a proxy for
// the next build, and with Config.Linger one keeps the build attached. Close waits for all.
type Connector struct {
	cfg      Config
	socket   string // the requested path; serve may report another
	moved    bool   // Config.Attach is not below Config.TempDir
	secret   wire.Secret
	log      *buildlog.Log
	closeLog func(context.Context)
	linger   *lingering  // nil without Config.Linger
	leaves   atomic.Bool // Close leaves the build to another manager
	begun    bool        // Connect may have started a step runner; read once connected is closed
	wg       sync.WaitGroup

	life     context.Context // ends with the build's ctx, with serve, or at Close
	end      context.CancelCauseFunc
	deadline context.Context // ends when Close gives up all its waits
	giveUp   context.CancelFunc

	mu        sync.Mutex    // guards the following
	connected chan struct{} // nil before Connect begins; closed when Connect returns
	build     *build        // nil until the build has its plan and its sessions
	lease     Lease         // Config.Lease, or that of a later link
	left      []string      // see Left
	forced    string        // see Forced
	isolation program.Isolation
	usage     program.Usage

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error
}

// New returns a Connector for one build. It does no I/O. The caller calls Close, which also releases the lease. If
// New fails, the lease stays the caller's.
func New(cfg Config) (*Connector, error) {
	switch {
	case cfg.Lease == nil:
		return nil, errors.New("connector: Config.Lease is nil")
	case cfg.VM == nil:
		return nil, errors.New("connector: Config.VM is nil")
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
	tempDir := path.Clean(cfg.TempDir)
	if cfg.Attach != "" { // the step runner stays where it is, though the VM may have another TempDir since
		tempDir = path.Join(cfg.Attach, "../../..")
	}
	socket, err := wire.SocketPath(tempDir, id)
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
	c := &Connector{
		cfg: cfg, socket: socket, moved: tempDir != path.Clean(cfg.TempDir), secret: secret,
		closing: make(chan struct{}), lease: cfg.Lease,
	}
	c.log, c.closeLog = buildlog.Of(cfg.Log, cfg.LogTimeout)
	return c, nil
}

func (cfg *Config) setDefaults() error {
	if min(cfg.LogTimeout, cfg.ReadyTimeout, cfg.StopTimeout) < 0 {
		return errors.New("connector: a time in Config is negative")
	}
	cfg.Route = cmp.Or(cfg.Route, Auto)
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, defaultReadyTimeout)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, defaultStopTimeout)
	cfg.Logger = cfg.VM.logs.Logger(cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)))
	if cfg.Trace == nil {
		cfg.Trace = noTrace()
	} else {
		trace := *cfg.Trace
		hooks.Fill(&trace)
		cfg.Trace = &trace
	}
	if _, err := ParseRoute(string(cfg.Route)); err != nil {
		return err
	}
	return cfg.Check()
}

// runner returns the step runner's command.
func (cfg *Config) runner() []string {
	if len(cfg.Runner) == 0 {
		return DefaultRunner
	}
	return cfg.Runner
}

// search returns the configuration for program.Find.
func (cfg *Config) search(conn Conn) program.Config {
	s := program.Config{
		Conn:      conn,
		Runner:    cfg.runner(),
		Others:    len(cfg.Runner) == 0,
		Bootstrap: cfg.Bootstrap,
		TempDir:   cfg.TempDir,
		Shared:    cfg.OtherUser(),
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

// Connect starts the build's step runner and returns a function that opens bridges to it. Each call opens a new
// bridge, a net.Conn, which its caller closes. gRPC calls over a bridge (grpc.WithContextDialer) need the build's
// Credentials. ctx is the build's life: when it ends, bridges fail and the build ends. Connect may be called once.
//
// It returns ctx.Err() if ctx ends first (after a deadline with the command that had not answered), a [*ServeError] if
// serve ends or does not listen in time, and a [*mux.ConnError] or a [*relay.Error] if the connection or its relay is
// lost (see [mux.IsLost]). Close stops the processes that a failed Connect has started.
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
		// If the build's life has ended, report that instead of the failures that follow from it.
		if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, context.Canceled) || !errors.Is(err, cause)) {
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
	if pause.Done(c.closing) {
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

// current returns the build, nil until it has its plan, and whether Connect has returned.
func (c *Connector) current() (b *build, connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.build, c.connected != nil && pause.Done(c.connected)
}

// currentLease returns the lease of the current link.
func (c *Connector) currentLease() Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lease
}

// Choice returns the routes that the build uses.
func (c *Connector) Choice() Choice {
	if b, _ := c.current(); b != nil {
		return b.routes()
	}
	return Choice{}
}

// Socket returns the path of the step runner's socket on the VM. It is empty until Connect has succeeded. Another
// Connector can attach there: see Config.Attach.
func (c *Connector) Socket() string {
	if b, connected := c.current(); connected && b != nil && b.serve != nil && b.serve.ready.Load() {
		return b.serve.socket
	}
	return ""
}

// Leave makes Close leave the build running on the VM: the build of a Connector with Config.Linger continues until
// another Connector attaches to it, or until its linger ends. Without Linger it does nothing.
func (c *Connector) Leave() { c.leaves.Store(true) }

// Close ends the build on the VM: bridges first, then serve, then the lease. It waits until serve is gone. When ctx
// ends or StopTimeout has passed, it gives up and returns an error. Then, and after a lost connection,
// [Connector.Left] lists what may be left. After Close nothing more is written to Log, except for the last write that
// [buildlog.Log.Close] mentions. Waiting calls of Connect and of bridges return ErrClosed or the error of the channel.
// Close is idempotent: later calls wait for the first and return its result.
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
		<-connected // soon: all its waits are bounded by the life that has just ended
		defer context.AfterFunc(ctx, c.giveUp)()
		b, _ := c.current()
		if b != nil {
			c.closeErr = b.stop(ctx)
		}
		if c.begun && (b == nil || b.serve == nil) {
			c.leave("unknown: the connection was lost before the step runner was seen to start")
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
