package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// Starter starts processes on a VM: a *mux.Conn, a *relay.Relay or a *mux.Reservation.
type Starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// StarterConfig says where processes are to be started, and how.
type StarterConfig struct {
	Conn    *mux.Conn    // required
	VM      *VM          // required
	Runner  []string     // as in Config
	TempDir string       // as in Config
	Route   Route        // as in Config
	Logger  *slog.Logger // as in Config
}

// NewStarter returns what starts processes on the VM best: its relay, which is started if it does not run,
// or else the connection. ctx bounds the wait for the relay.
func NewStarter(ctx context.Context, cfg StarterConfig) (Starter, error) {
	c := Config{Runner: cfg.Runner, TempDir: cfg.TempDir, Route: cfg.Route, VM: cfg.VM, Logger: cfg.Logger}
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	if found := c.VM.Program(); found.Uploaded {
		c.Runner = found.Command
	}
	relay, _, err := startRoute(ctx, cfg.Conn, &c)
	if relay == nil {
		return cfg.Conn, err
	}
	return relay, err
}

// startRoute returns the relay by which processes are started, nil if that is by session, and the reason.
func startRoute(ctx context.Context, conn *mux.Conn, cfg *Config) (*relay.Relay, string, error) {
	if cfg.Route == Session || cfg.Route == Streamlocal {
		return nil, forced, nil
	}
	known := cfg.VM.relayVerdict()
	if cfg.Route == Auto && known.known && !known.works {
		return nil, known.reason, nil
	}
	relay, err := startRelay(ctx, conn, cfg, cfg.Runner)
	switch {
	case err == nil:
		if cfg.Route == Relay {
			return relay, forced, nil
		}
		const reason = "a relay runs on this VM: one session for all builds"
		if !known.works {
			cfg.VM.judgeRelay(true, reason)
			cfg.Logger.Info("start route found", "route", Relay, "reason", reason)
		}
		return relay, reason, nil
	case !noRelay(err):
		return nil, "", err
	}
	err = relayHint(cfg.Runner, err)
	if cfg.Route == Relay {
		return nil, "", err
	}
	reason := err.Error()
	cfg.VM.judgeRelay(false, reason)
	cfg.Logger.Info("start route found", "route", Session, "reason", reason)
	return nil, reason, nil
}

// startRelay returns the relay of the runner, started if it does not run.
func startRelay(ctx context.Context, conn *mux.Conn, cfg *Config, runner []string) (*relay.Relay, error) {
	return conn.Relay(ctx, mux.Command{Argv: relayArgv(runner, cfg.TempDir), Stderr: relayLog{cfg.Logger}})
}

// noRelay reports whether err says that there is no relay, on a connection that is well.
func noRelay(err error) bool {
	refused := (*relay.Error)(nil)
	return errors.As(err, &refused) || errors.Is(err, mux.ErrForbidden)
}

// relayHint adds to the error of a relay that did not start what to do about it.
func relayHint(runner []string, err error) error {
	failed := (*relay.Error)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.ExitCode {
	case 0:
		if failed.Version != 0 || failed.Op != "start" {
			return err
		}
		return fmt.Errorf("%w (does the login run the command it is given, and is that a stepmux that has the command steps relay?)", err)
	case 126, 127:
		return fmt.Errorf("%w (%s)", err, missingHint(runner))
	default:
		return fmt.Errorf("%w (is the runner command a stepmux that has the command steps relay?)", err)
	}
}

// relayLog passes what a relay says on to a log.
type relayLog struct{ logger *slog.Logger }

func (l relayLog) Write(p []byte) (int, error) {
	if text := tail.Lines(p); text != "" {
		l.logger.Warn("relay", "says", text)
	}
	return len(p), nil
}

// start starts serve by the best route, waits until it listens and finds out how to reach it.
func (c *Connector) start() error {
	program, err := findProgram(c.life, c.cfg.Lease.Conn(), &c.cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.program, c.cfg.Runner = *program, program.Command
	if program.Kind == StepRunner {
		c.secret = wire.Secret{}
	}
	c.mu.Unlock()
	relay, reason, err := startRoute(c.life, c.cfg.Lease.Conn(), &c.cfg)
	switch {
	case err != nil:
		return err
	case relay != nil:
		return c.startByRelay(relay, reason)
	default:
		return c.startBySession(reason)
	}
}

// startByRelay starts serve by the relay. If the bridge goes by it too, it is opened in the same flight:
// the relay waits for serve itself.
func (c *Connector) startByRelay(relay *relay.Relay, reason string) error {
	c.mu.Lock()
	c.relay, c.starter = relay, relay
	c.choice.Start, c.choice.StartReason = Relay, reason
	c.mu.Unlock()
	if c.cfg.Route == Relay {
		c.choose(Relay, forced)
		return c.startInOneFlight()
	}
	// By a relay nobody need wait for the one who finds out about streamlocal.
	known, found, err := c.cfg.VM.streamlocalVerdict(c.life, false)
	if err != nil {
		return err
	}
	switch {
	case found != nil:
		defer found(verdict{}) // unless something is found
		if err := c.startServe(); err != nil {
			return err
		}
		return c.probe(found)
	case known.works && c.takeNative():
		c.choose(Streamlocal, known.reason)
		return c.startServe()
	case known.works:
		c.choose(Relay, fmt.Sprintf("the connection has %d streamlocal channels: more would slow all of them", maxNative))
	case known.known:
		c.choose(Relay, known.reason)
	default:
		c.choose(Relay, "another build is finding out about streamlocal forwarding")
	}
	return c.startInOneFlight()
}

// startInOneFlight starts serve and opens the first bridge to it by the relay.
func (c *Connector) startInOneFlight() error {
	type result struct {
		stream *mux.Stream
		err    error
	}
	ctx, cancel := context.WithCancel(c.life)
	defer cancel()
	opened := make(chan result, 1)
	c.wg.Go(func() {
		stream, err := c.relay.DialReady(ctx, c.socket)
		opened <- result{stream, err}
	})
	err := c.startServe()
	if err != nil {
		cancel()
	}
	defer time.AfterFunc(c.cfg.ReadyTimeout, cancel).Stop()
	bridge := <-opened // soon: serve is ready or ctx has ended
	switch {
	case err != nil && bridge.err == nil:
		bridge.stream.Close()
		return err
	case err != nil:
		return err
	case bridge.err != nil:
		return fmt.Errorf("bridge to the step runner: %w", bridge.err)
	}
	return c.keepEarly(bridge.stream)
}

// startBySession starts serve in a session of its own.
func (c *Connector) startBySession(reason string) error {
	route, why, found := c.cfg.Route, forced, func(verdict) {}
	if c.cfg.Route == Auto {
		known, ask, err := c.cfg.VM.streamlocalVerdict(c.life, true)
		switch {
		case err != nil:
			return err
		case ask != nil:
			route, found = "", ask
			defer found(verdict{}) // unless something is found
		case known.works:
			route, why = Streamlocal, known.reason
		default:
			route, why = Session, known.reason
		}
	}
	held := 0
	if route != "" { // a probe may need two sessions at once
		held = c.takeAhead(route)
	}
	// A bridge by session needs a session of its own. Serve and bridge take theirs together: builds
	// that each hold one and wait for the second would wait for ever.
	need := 1
	if route != Streamlocal {
		need = 2
	}
	sessions, err := c.reserve(need, held)
	if errors.Is(err, mux.ErrForbidden) && route == "" {
		// Never two at once: enough if streamlocal turns out to work.
		sessions, err = c.reserve(1, 0)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.sessions, c.starter = sessions, c.cfg.Lease.Conn()
	if sessions != nil {
		c.starter = sessions
	}
	c.choice = Choice{Start: Session, StartReason: reason, Bridge: route, BridgeReason: why}
	proxied := c.proxyAhead != nil
	c.mu.Unlock()
	if route == Session && !proxied && c.program.Kind == Stepmux {
		c.startProxy()
	}
	if err := c.startServe(); err != nil {
		return err
	}
	c.prepareAhead()
	if route == "" {
		return c.probe(found)
	}
	return nil
}

// reserve reserves what is missing of n sessions when what was started ahead holds some; no Reservation is one of
// none. A build that holds some does not wait for more, as two such might wait for each other: it gives up what it
// has and waits for all.
func (c *Connector) reserve(n, held int) (*mux.Reservation, error) {
	conn := c.cfg.Lease.Conn()
	if held == n {
		return nil, nil
	}
	if held > 0 {
		sessions, err := conn.TryReserve(c.life, n-held)
		if !errors.Is(err, mux.ErrSaturated) {
			return sessions, err
		}
		c.giveUpAhead()
	}
	return conn.Reserve(c.life, n)
}

// startServe starts serve and the goroutines that watch it, and waits until it listens.
func (c *Connector) startServe() error {
	begin := time.Now()
	stderr := newServeStderr(&remarks{log: c.log, done: c.closing})
	process := c.useAhead(stderr)
	if process == nil {
		var err error
		if process, err = c.starter.Start(c.life, c.serveCommand(stderr)); err != nil {
			return c.startError(err)
		}
	}
	s := &serve{process: process, stderr: stderr, socket: c.socket, asked: c.socket, runner: c.cfg.Runner}
	c.mu.Lock()
	c.serve = s
	c.mu.Unlock()
	c.wg.Go(func() {
		s.copyStdout(&remarks{log: c.log, done: c.closing}) // ends with the process, at the latest
		select {
		case <-process.Exited():
		case <-c.gaveUp:
		}
		if isDone(process.Exited()) { // also if it has when it is given up: its last words are to be told
			c.end(s.exitError())
		}
	})
	if err := s.awaitReady(c.life, c.cfg.ReadyTimeout); err != nil {
		return err
	}
	c.cfg.Trace.serveReady(c.cfg.BuildID, c.Choice().Start, time.Since(begin))
	return nil
}

// serveCommand starts the build's step runner: one that watches its stdin, with the build's secret on it, or one
// of another make, on a leash.
func (c *Connector) serveCommand(stderr io.Writer) mux.Command {
	command := mux.Command{Ready: c.socket, Stderr: stderr}
	if c.program.Kind == StepRunner {
		command.Argv = leashArgv(c.cfg.Runner, c.socket, min(maxLeashGrace, c.cfg.StopTimeout/2))
		return command
	}
	command.Argv, command.Input = serveArgv(c.cfg.Runner, c.socket), c.secret.Line()
	return command
}

// startError makes a relay's word that there is no such program the same as a login shell's.
func (c *Connector) startError(err error) error {
	refused := (*relay.RefusedError)(nil)
	if errors.As(err, &refused) && refused.Reason == relay.RefusedNotFound {
		return &ServeError{ExitCode: 127, Err: err, Hint: missingHint(c.cfg.Runner)}
	}
	return err
}

// probe finds out whether streamlocal reaches the socket of a serve that listens, and remembers it. That it does not
// is known only once the next route has: a serve that died meanwhile says nothing about the VM.
func (c *Connector) probe(found func(verdict)) error {
	stream, err := c.cfg.Lease.Conn().DialUnix(c.life, c.listening())
	if err == nil {
		const reason = "works on this VM and costs no session"
		c.choose(Streamlocal, reason)
		c.bridgeFound(found, verdict{true, true, reason})
		if c.relay != nil {
			c.takeNative()
		}
		return c.keepEarly(stream)
	}
	if !isUnreachable(err) {
		return err
	}
	what := verdict{true, false, fmt.Sprintf("the VM refuses streamlocal forwarding: %v", err)}
	route, bridge, err := c.dialInstead()
	switch {
	case err == nil:
	case c.life.Err() != nil:
		return context.Cause(c.life)
	case !errors.Is(err, mux.ErrForbidden): // which no build on this VM escapes
		return fmt.Errorf("bridge to the step runner: %w", err)
	}
	c.choose(route, what.reason)
	c.bridgeFound(found, what)
	if err != nil {
		return fmt.Errorf("bridge to the step runner: %w", err)
	}
	return c.keepEarly(bridge)
}

// bridgeFound tells what a probe has found, and logs it.
func (c *Connector) bridgeFound(found func(verdict), what verdict) {
	found(what)
	choice := c.Choice()
	c.cfg.Logger.Info("bridge route found", "route", choice.Bridge, "reason", choice.BridgeReason)
}

// choose sets the bridge route; the session kept for one by session is free where it is not needed.
func (c *Connector) choose(route Route, reason string) {
	c.mu.Lock()
	c.choice.Bridge, c.choice.BridgeReason = route, reason
	sessions := c.sessions
	c.mu.Unlock()
	if route == Streamlocal && sessions != nil {
		sessions.Release()
	}
}

// takeNative counts the build among those whose bridge is a channel of the connection, if there is room.
func (c *Connector) takeNative() bool {
	if !c.cfg.VM.takeNative() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.native = true
	return true
}

// giveNative undoes takeNative.
func (c *Connector) giveNative() {
	c.mu.Lock()
	native := c.native
	c.native = false
	c.mu.Unlock()
	if native {
		c.cfg.VM.giveNative()
	}
}

// keepEarly keeps a bridge for whoever asks for one first.
func (c *Connector) keepEarly(raw io.ReadWriteCloser) error {
	b, err := c.adopt(raw)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.early = b
	return nil
}
