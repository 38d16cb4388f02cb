package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// starter starts processes on a VM: a connection, a relay or a reservation.
type starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// build is the state of a build once it has a plan. Connect creates it; bridges and Close use it later.
type build struct {
	c        *Connector
	conn     Conn
	program  *program.Program
	relay    *relay.Relay     // nil if the build is started by session
	sessions *mux.Reservation // nil if the build needs no session of its own, or uses those of prestarted processes
	starter  starter
	serve    *serve           // nil before it has started
	proxy    chan *prestarted // see startProxy; nil if no proxy was started before its bridge
	early    chan net.Conn    // holds a bridge that was opened before the first call of dial
	native   atomic.Bool      // the build counts in VM.native

	mu      sync.Mutex // guards the following
	choice  Choice
	bridges map[*bridge]struct{}
	bridged bool // a bridge has been open at some time
}

// start finds the step runner, makes the plan, starts serve, waits until it listens and finds a route to it.
func (c *Connector) start() (*build, error) {
	conn := c.currentLease().Conn()
	found, err := c.cfg.VM.findProgram(c.life, &c.cfg, conn)
	if err == nil && c.linger != nil {
		err = knowsLinger(found)
	}
	if err != nil {
		return nil, err
	}
	if err := c.cfg.isolates(found); err != nil {
		return nil, err
	}
	p, err := c.cfg.VM.plan(c.life, &c.cfg, conn, found.Argv())
	if err != nil {
		return nil, err
	}
	if p.report != nil {
		defer p.report(capability{}, 0) // ends the probe without a result, unless it has one by then
	}
	b := &build{
		c: c, conn: conn, program: found, relay: p.relay, choice: p.Choice,
		early: make(chan net.Conn, 1), bridges: map[*bridge]struct{}{},
	}
	b.native.Store(p.native)
	switch {
	case p.relay == nil:
		err = b.startBySession(&p)
	case p.Bridge == Relay && c.linger == nil: // a lingering serve outlives its starter, which may exit early
		err = b.startWithBridge()
	default:
		b.publish(b.relay)
		err = b.startServe(nil)
	}
	if err == nil && p.report != nil {
		err = b.probe(p.report)
	}
	if err == nil {
		var start program.Starter = b.conn // not b.starter: its sessions are reserved for the build
		if b.relay != nil {
			start = b.relay
		}
		c.wg.Go(func() { c.cfg.VM.complete(c.life, &c.cfg, found, start) })
	}
	return b, err
}

// publish makes the build known to Close, which ends it, and sets the starter of its processes.
func (b *build) publish(s starter) {
	b.starter = s
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.build = b
}

// startWithBridge starts serve and at the same time opens the first bridge to it: the relay waits for serve to
// listen.
func (b *build) startWithBridge() error {
	b.publish(b.relay)
	ctx, cancel := context.WithCancel(b.c.life)
	defer cancel()
	var stream *mux.Stream
	var dialErr error
	var dial sync.WaitGroup
	dial.Go(func() { stream, dialErr = b.relay.DialReady(ctx, b.c.socket) })
	err := b.startServe(nil)
	if err != nil {
		cancel()
	}
	defer time.AfterFunc(b.c.cfg.ReadyTimeout, cancel).Stop()
	dial.Wait() // soon: serve is ready or ctx has ended
	switch {
	case err != nil && dialErr == nil:
		stream.Close()
		return err
	case err != nil:
		return err
	case dialErr != nil:
		return bridgeError(dialErr)
	}
	return b.keepEarly(stream)
}

// startBySession starts serve in a session of its own. It reserves all sessions of the plan that prestarted processes
// do not already hold. Serve and a bridge by session are reserved together: builds that each hold one and wait for
// the second would deadlock. For the same reason a build that must wait first discards its prestarted processes.
func (b *build) startBySession(p *plan) (err error) {
	serve, proxy := b.takePrestarted(p)
	need, held := 2, 0
	if p.Bridge == Streamlocal {
		need = 1
	}
	for _, process := range []*prestarted{serve, proxy} {
		if process != nil {
			held++
		}
	}
	if held > 0 && held < need {
		b.sessions, err = b.conn.TryReserve(b.c.life, need-held)
	}
	if err != nil {
		serve.discard()
		proxy.discard()
		serve, proxy = nil, nil
	}
	if held == 0 || errors.Is(err, mux.ErrSaturated) {
		b.sessions, err = b.conn.Reserve(b.c.life, need)
		if errors.Is(err, mux.ErrForbidden) && p.report != nil {
			// The server never allows two at once. One is enough if streamlocal works.
			b.sessions, err = b.conn.Reserve(b.c.life, 1)
		}
	}
	if err != nil {
		return err
	}
	var s starter = b.conn
	if b.sessions != nil {
		s = b.sessions
	}
	b.publish(s)
	if p.Bridge == Session && b.program.Kind == program.Stepmux {
		b.startProxy(proxy)
	}
	if err := b.startServe(serve); err != nil {
		return err
	}
	b.prestartNext()
	return nil
}

// startServe starts serve, or uses the prestarted one, and waits until it listens.
func (b *build) startServe(ready *prestarted) error {
	c, begin := b.c, time.Now()
	stderr := newServeStderr(c.log.Remarks(c.closing), c.cfg.Logger)
	input := append([]byte(c.socket+"\n"), c.secret.Line()...)
	process, err := b.startOr(ready, input, b.serveCommand(stderr))
	c.begun = c.begun || err == nil || mux.IsLost(err)
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok {
		failed := &ServeError{ExitCode: -1, Err: err}
		if refused.Reason == relay.RefusedNotFound { // a login shell reports this as exit code 127
			failed.ExitCode, failed.Hint = 127, program.MissingHint(b.program.Command)
		}
		return failed
	}
	if err != nil {
		return err
	}
	s := &serve{process: process, stderr: stderr, socket: c.socket, runner: b.program.Argv()}
	b.serve = s
	life, end := c.life, c.end
	if c.linger != nil { // the process may exit once its serve listens
		s.detached = true
		life, end = context.WithCancelCause(c.life)
	}
	c.wg.Go(func() {
		// serve prints nothing on stdout, but a login shell may. The copy ends with the process, and the process's
		// end reports any error. The buffer is small, because many builds are idle.
		stdout := c.log.Remarks(c.closing)
		_, _ = io.CopyBuffer(stdout, process, make([]byte, 4<<10))
		stdout.Flush()
		select {
		case <-process.Exited():
		case <-c.deadline.Done():
		}
		if pause.Done(process.Exited()) { // even if serve was ready, too: its last lines belong in the log
			end(s.exitError())
		}
	})
	if err := s.awaitReady(life, c.cfg.ReadyTimeout); err != nil {
		return err
	}
	c.cfg.Trace.ServeReady(c.cfg.BuildID, b.routes().Start, time.Since(begin))
	return nil
}

// serveCommand starts the build's step runner. A stepmux watches its stdin, which begins with the build's secret; any
// other step runner needs a leash. A relay starts its own program, not the file at the path: a build may have
// replaced that file.
func (b *build) serveCommand(stderr *serveStderr) mux.Command {
	command := mux.Command{Ready: b.c.socket, Stderr: stderr, Leave: program.Leave}
	if b.program.Kind == program.StepRunner {
		command.Argv = leashArgv(b.program.Command, b.c.socket, min(maxLeashGrace, b.c.cfg.StopTimeout/2))
		return command
	}
	runner := b.program.Argv()
	if b.relay != nil {
		runner = []string{"/proc/self/exe"}
	}
	command.Argv, command.Input = b.c.cfg.serveArgv(runner, b.c.socket), b.c.secret.Line()
	return command
}

// probe finds out whether streamlocal reaches the socket of a listening serve, and reports the result. A refusal
// counts only if the next route then reaches serve: the refusal of a serve that has died proves nothing about the VM.
func (b *build) probe(report func(capability, time.Duration)) error {
	stream, err := b.conn.DialUnix(b.c.life, b.serve.socket)
	if err == nil {
		const reason = "works on this VM and costs no session"
		b.choose(Streamlocal, reason)
		b.found(report, capability{true, reason})
		b.native.Store(b.relay != nil && b.c.cfg.VM.takeNative())
		return b.keepEarly(stream)
	}
	if !isRefused(err) {
		return err
	}
	forbidden := capability{false, fmt.Sprintf("the VM refuses streamlocal forwarding: %v", err)}
	route, bridge, err := b.dialInstead()
	switch {
	case err == nil:
	case b.c.life.Err() != nil:
		return context.Cause(b.c.life)
	case !errors.Is(err, mux.ErrForbidden): // the server's policy, for all builds on this VM
		return bridgeError(err)
	}
	b.choose(route, forbidden.reason)
	b.found(report, forbidden)
	if err != nil {
		return bridgeError(err)
	}
	return b.keepEarly(bridge)
}

// found reports and logs the result of a probe.
func (b *build) found(report func(capability, time.Duration), result capability) {
	report(result, forever)
	choice := b.routes()
	b.c.cfg.Logger.Info("bridge route found", "route", choice.Bridge, "reason", choice.BridgeReason)
}

// choose sets the bridge route. With streamlocal, the session that was reserved for a bridge is freed.
func (b *build) choose(route Route, reason string) {
	b.mu.Lock()
	b.choice.Bridge, b.choice.BridgeReason = route, reason
	b.mu.Unlock()
	if route == Streamlocal && b.sessions != nil {
		b.sessions.Release()
	}
}

// routes returns the build's routes.
func (b *build) routes() Choice {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.choice
}

// giveNative frees the build's place in VM.native.
func (b *build) giveNative() {
	if b.native.Swap(false) {
		b.c.cfg.VM.native.Add(-1)
	}
}
