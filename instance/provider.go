package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// defaultStopTimeout is enough for a job's grace, a step runner's and the removal of what they leave.
const defaultStopTimeout = 20 * time.Second

// Config says what a Provider works with.
type Config struct {
	// Group holds the instances. Required.
	Group *Group
	// Route is how the builds' step runners are started and reached. If empty, connector.Auto.
	Route connector.Route
	// Bootstrap are programs that may be put on an instance whose step runner is missing or does not do; see
	// connector.Config. If empty, none is.
	Bootstrap []*program.Binary
	// Version is that of this program: a warning tells if an instance's is another. If empty, none does.
	Version string
	// DialTimeout bounds one connection's set-up: TCP, handshake and login. If zero, 30s.
	DialTimeout time.Duration
	// IdleTimeout closes a connection no build uses. If zero, 5m. If negative, off.
	IdleTimeout time.Duration
	// MaxAge recycles connections: an older one takes no new builds and closes when its last has
	// ended. If zero, off.
	MaxAge time.Duration
	// ReadyTimeout bounds the wait for a build's steps serve. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds the wait for it to be gone. If zero, 20s.
	StopTimeout time.Duration
	// LogTimeout is how long a build's Log may take for one write before that ends the build, as a failure of the
	// system. If zero, 5m.
	LogTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL for scripts and commands that are stopped. Their end
	// is waited for no more than a second longer. If zero, 10s.
	Grace time.Duration
	// Logger receives what an operator may want to know. If nil, nothing is logged.
	Logger *slog.Logger
	// Trace is told what happens to the builds' step runners. If nil, nobody is.
	Trace *connector.Trace
	// PoolTrace is told what happens to leases and dials, ConnTrace to connections whose instance or jump host
	// has no Trace of its own. If nil, nobody is.
	PoolTrace *pool.Trace
	ConnTrace *mux.Trace
}

// Provider makes executors for builds and owns the connections they share, one per instance and one per host
// on the way to instances. It is safe for concurrent use.
type Provider struct {
	cfg   Config
	conns *connections
}

// NewProvider returns a Provider. It connects to nothing yet. The caller calls Shutdown or Close.
func NewProvider(cfg Config) (*Provider, error) {
	if cfg.Group == nil {
		return nil, errors.New("instance: Config.Group is nil")
	}
	if cfg.DialTimeout < 0 || cfg.MaxAge < 0 || cfg.ReadyTimeout < 0 || cfg.StopTimeout < 0 || cfg.LogTimeout < 0 || cfg.Grace < 0 {
		return nil, errors.New("instance: a time in Config is negative")
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = defaultStopTimeout
	}
	p := &Provider{cfg: cfg}
	p.conns = newConnections(cfg.Group, cfg.ConnTrace, pool.Config[*mux.Conn]{
		DialTimeout: cfg.DialTimeout,
		IdleTimeout: cfg.IdleTimeout,
		MaxAge:      cfg.MaxAge,
		Trace:       p.poolTrace(),
	})
	cfg.Group.provide(p.out)
	return p, nil
}

// poolTrace is the configured one, which is told besides.
func (p *Provider) poolTrace() *pool.Trace {
	var trace, told pool.Trace
	if p.cfg.PoolTrace != nil {
		trace, told = *p.cfg.PoolTrace, *p.cfg.PoolTrace
	}
	trace.DialDone = func(key pool.Key, attempt int, took time.Duration, err error) {
		p.logDial(key, attempt, took, err)
		if told.DialDone != nil {
			told.DialDone(key, attempt, took, err)
		}
	}
	trace.Retire = func(key pool.Key, cause error) {
		p.logRetire(key, cause)
		if told.Retire != nil {
			told.Retire(key, cause)
		}
	}
	return &trace
}

// logDial says how a dial went.
func (p *Provider) logDial(key pool.Key, attempt int, took time.Duration, err error) {
	if err != nil {
		p.cfg.Logger.Warn("not connected", "instance", key, "attempt", attempt, "took", took, "error", err)
		return
	}
	p.cfg.Logger.Info("connected", "instance", key, "attempt", attempt, "took", took)
}

// out lets the connection of an instance take no more builds, and closes it with its last one.
func (p *Provider) out(id string, cause error) {
	level := slog.LevelInfo
	if errors.Is(cause, outError(UsedUp)) {
		level = slog.LevelWarn // nobody asked for it just now
	}
	p.cfg.Logger.Log(context.Background(), level, "connection is to be closed", "instance", id, "reason", cause)
	p.conns.retire(id, cause)
}

// logRetire says why a connection leaves service, and to the group if it died.
func (p *Provider) logRetire(key pool.Key, cause error) {
	p.cfg.Logger.Info("connection leaves service", "instance", key, "reason", cause)
	if died := (*mux.ConnError)(nil); errors.As(cause, &died) {
		p.cfg.Group.lost(string(key), cause)
	}
}

// Build is one build as its executor needs to know it.
type Build struct {
	// ID names the build, uniquely among those that run: 1 to 64 characters of A-Z a-z 0-9 . _ -.
	// Required.
	ID string
	// Log is the build's log, written to as a [buildlog.Log] does it: one write at a time, the step runner's own
	// lines marked. If it fails or blocks that ends the build, and nothing else. If nil it is discarded.
	Log io.Writer
	// Shell is the command that runs the build's shell scripts. If empty, bash.
	Shell []string
}

// Executor returns the executor of b. It does no I/O. The caller calls Cleanup at the end, whatever
// happened.
func (p *Provider) Executor(b Build) *Executor {
	if b.Log == nil {
		b.Log = io.Discard
	}
	e := &Executor{provider: p, build: b, log: buildlog.New(b.Log, p.cfg.LogTimeout)}
	e.life, e.end = context.WithCancelCause(context.Background())
	return e
}

// Dial makes a connection of its own to an instance, outside the pool but by way of the pooled connections to
// the hosts on the way; trace, if it is not nil, is told of it instead of the configured one. It is for who examines an
// instance. The caller closes the connection, before the Provider. Errors are as for mux.Dial, or say that
// there is no such instance.
func (p *Provider) Dial(ctx context.Context, id string, trace *mux.Trace) (*mux.Conn, error) {
	return p.conns.connect(ctx, id, trace)
}

// Add adds an instance to the Group's set; see Group.Update for what is an error. From the first Add or Remove
// on builds wait also while no instance takes any: another may be added.
func (p *Provider) Add(in Instance) error { return p.cfg.Group.add(in) }

// Remove takes an instance out of the Group's set because the machine is gone or is to go: no new builds, its
// connection is closed with the last of those that run, and what was learned of its host key is forgotten. (A
// build that has its slot and no step runner yet fails.) A machine at the same address is another one and
// needs another ID. One that is also a jump host with an address of its own goes on as that, and its key is
// kept; one that others go through by its ID alone is not removed, which is an error. ctx bounds the wait for
// other processes that use the same file of host keys.
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

// Shutdown refuses new builds, waits until those that run have been cleaned up, then closes all
// connections. When ctx ends first it closes them at once and returns ctx's cause.
func (p *Provider) Shutdown(ctx context.Context) error { return p.conns.Shutdown(ctx) }

// Close closes all connections now, under the builds that run. It is idempotent and waits for the
// Provider's goroutines.
func (p *Provider) Close() error { return p.conns.Close() }
