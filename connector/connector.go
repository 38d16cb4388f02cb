package connector

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path"
	"sync"
	"time"

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

// DefaultRunner is the step runner's command where none is configured.
var DefaultRunner = []string{"stepmux"}

// Lease is a build's share of its VM's connection, as pool.Lease gives it.
type Lease interface {
	Conn() *mux.Conn
	Release()
}

// Config says for which build a Connector is, and where.
type Config struct {
	// Lease is the build's share of the VM's connection. Required. New takes it over: Close releases it.
	Lease Lease
	// VM is what is known of the VM, shared by all its builds. Required.
	VM *VM
	// BuildID names the build, uniquely on the VM: 1 to 64 characters of A-Z a-z 0-9 . _ -, not "." or
	// "..". Required.
	BuildID string
	// Runner is the step runner's command on the VM: a stepmux, or a gitlab-runner or step-runner, which is
	// then driven by its own protocol. If empty, DefaultRunner, or one of the others if that is missing.
	Runner []string
	// Bootstrap are programs of which that for the VM's platform may be put on it, in a directory of the
	// user's, if the runner is missing there, cannot be executed, is for another platform or too old for a
	// relay. If empty, none is.
	Bootstrap []*Binary
	// Version is that of this program: a warning tells if the VM's is another. If empty, none does.
	Version string
	// TempDir is the VM's directory for temporary files, below which the build's socket directory is
	// made. If empty, /tmp.
	TempDir string
	// Route says how serve is started and its socket reached. If empty, Auto.
	Route Route
	// Log receives what the build's serve says. A *Log is the caller's to close; any other Writer is written to
	// as NewLog says, with LogTimeout. If nil it is discarded.
	Log io.Writer
	// LogTimeout is how long Log, and the trace of Execute, may take for one write before that ends the build, if
	// they are no *Log. If zero, 5m.
	LogTimeout time.Duration
	// ReadyTimeout bounds the wait for serve to listen, and for an answer of a runner that is asked for its
	// version. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds the wait for serve to be gone at the end; it includes the grace its jobs get.
	// If zero, 20s.
	StopTimeout time.Duration
	// Logger receives what an operator may want to know. If nil, nothing is logged.
	Logger *slog.Logger
	// Trace is told what happens. If nil, nobody is. New copies it.
	Trace *Trace

	anyRunner bool // Runner was empty
}

// Connector joins one build to its step runner. One goroutine copies serve's stdout and watches for its end; one may
// start its proxy beside serve, and one a serve and a proxy ahead for the next build. Close waits for all. It is safe for
// concurrent use.
type Connector struct {
	cfg    Config
	socket string // the path asked for; serve may tell another
	log    *Log

	closeLog  func(context.Context) // if it is ours
	forgetLog func() bool           // ends the build's interest in it; set with life

	patience context.Context // ends when Close waits for nothing any more
	giveUp   context.CancelFunc

	life context.Context // ends with the build's ctx, with serve, or at Close
	end  context.CancelCauseFunc
	wg   sync.WaitGroup

	serveAhead *headStart // to be the build's; only Connect uses it

	mu         sync.Mutex    // guards the following
	connected  chan struct{} // not nil once Connect was called; closed when it returns
	serve      *serve
	starter    Starter          // of serve
	relay      *relay.Relay     // nil if the build has nothing to do with one
	sessions   *mux.Reservation // nil if it needs none
	proxyAhead *headStart       // to be the first bridge by session
	coming     chan struct{}    // closed once proxyAhead is there, or will not be; nil if none was started beside serve
	early      *bridge          // one that was opened before anybody asked
	bridges    map[*bridge]struct{}
	bridged    bool // a bridge has been open
	native     bool // it counts as a streamlocal bridge
	choice     Choice
	program    Program     // that of the VM; zero before it was found
	secret     wire.Secret // what calls of its serve carry; zero if that is of a kind that knows none

	closing   chan struct{} // closed when Close begins
	gaveUp    chan struct{} // closed when Close waits for serve no longer
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
	c := &Connector{
		cfg:     cfg,
		socket:  socket,
		secret:  wire.NewSecret(),
		bridges: map[*bridge]struct{}{},
		closing: make(chan struct{}),
		gaveUp:  make(chan struct{}),
	}
	c.log, c.closeLog = logOf(cfg.Log, cfg.LogTimeout)
	return c, nil
}

func (cfg *Config) setDefaults() error {
	if len(cfg.Runner) == 0 {
		cfg.anyRunner = true
		cfg.Runner = DefaultRunner
	}
	if cfg.TempDir == "" {
		cfg.TempDir = defaultTempDir
	}
	if cfg.Route == "" {
		cfg.Route = Auto
	}
	if _, err := ParseRoute(string(cfg.Route)); err != nil {
		return err
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	if cfg.ReadyTimeout == 0 {
		cfg.ReadyTimeout = defaultReadyTimeout
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = defaultStopTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	trace := Trace{}
	if cfg.Trace != nil {
		trace = *cfg.Trace
	}
	cfg.Trace = &trace
	return nil
}

// Connect starts the build's step runner and returns a function that opens bridges to it; each call
// of that gives a new one, which its caller closes. Calls over them carry the build's Credentials. ctx is the build's life: when it ends, bridges
// fail and the build is over. Connect may be called once.
//
// It returns ctx.Err() when ctx ends first, a [*ServeError] when serve ends or does not listen in
// time, a [*mux.ConnError] when the connection is lost. What it had started by then is stopped by
// Close.
func (c *Connector) Connect(ctx context.Context) (func() (io.ReadWriteCloser, error), error) {
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	defer close(c.connected)
	err := c.start() //nolint:contextcheck // the life it uses is made of ctx
	if err != nil {
		// Whatever went wrong because the build's life ended, that it ended is the reason.
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		c.end(err)
		return nil, err
	}
	return func() (io.ReadWriteCloser, error) { return c.dial() }, nil
}

func (c *Connector) begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		return ErrClosed
	default:
	}
	if c.connected != nil {
		return errors.New("connector: Connect called twice")
	}
	c.connected = make(chan struct{})
	c.life, c.end = context.WithCancelCause(ctx)
	c.patience, c.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	c.forgetLog = endWithLog(c.log, c.end)
	return nil
}

// ready reports whether Connect has returned, and well.
func (c *Connector) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected == nil || c.serve == nil || !c.serve.ready.Load() {
		return false
	}
	select {
	case <-c.connected:
		return true
	default:
		return false
	}
}

// listening returns the socket's path as serve told it.
func (c *Connector) listening() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serve.socket
}

// Choice returns the routes the build takes.
func (c *Connector) Choice() Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.choice
}

// Program returns the VM's step runner, the zero value before it was found.
func (c *Connector) Program() Program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.program
}

// Close ends the build's presence on the VM: bridges first, then serve, then the lease. It waits
// until serve is seen gone, at most until ctx ends or StopTimeout has passed; then it gives up and
// says so. When it returns nothing is written to Log any more, but for what [Log.Close] says of a Writer that does
// not return. Calls of Connect and of bridges that wait return ErrClosed or the channel's end. Close is
// idempotent: later calls wait for the first and return its result.
func (c *Connector) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		close(c.closing)
		connected := c.connected
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)
		defer cancel()
		defer c.closeLog(ctx)
		defer c.cfg.Lease.Release()
		if connected == nil {
			return
		}
		c.forgetLog()
		c.end(ErrClosed)
		<-connected // soon: all it waits for is bounded by the life that just ended
		defer context.AfterFunc(ctx, c.giveUp)()
		c.closeBridges()
		c.giveUpAhead()
		c.giveNative()
		c.closeErr = c.stopServe(ctx)
		if c.closeErr != nil {
			c.giveUp()
		}
		c.wg.Wait()
		c.giveUp()
	})
	return c.closeErr
}

// stopServe ends serve and waits for it, bounded by ctx.
func (c *Connector) stopServe(ctx context.Context) error {
	c.mu.Lock()
	s, sessions := c.serve, c.sessions
	c.mu.Unlock()
	if sessions != nil {
		defer sessions.Release()
	}
	if s == nil {
		return nil
	}
	begin := time.Now()
	c.cfg.Trace.serveStop(c.cfg.BuildID)
	c.wg.Go(func() { _ = s.process.CloseWrite() }) // the leash; an error means that the channel is gone
	err := s.awaitExit(ctx)
	c.cfg.Trace.serveGone(c.cfg.BuildID, time.Since(begin), err)
	s.process.Close()
	close(c.gaveUp) // the close of a channel is confirmed only when its process is gone
	if s.leftDirectory() {
		c.removeDirectory(ctx, path.Dir(s.socket))
	}
	return err
}

// removeDirectory removes the directory of a serve that was killed. What cannot be removed now the
// next serve or relay on the VM sweeps.
func (c *Connector) removeDirectory(ctx context.Context, dir string) {
	p, err := c.starter.Start(ctx, mux.Command{Argv: removeArgv(dir)})
	if err == nil {
		defer p.Close()
		err = p.Wait(ctx)
	}
	if err != nil {
		c.cfg.Logger.Warn("build directory left on the VM, its next step runner removes it", "dir", dir, "error", err)
	}
}
