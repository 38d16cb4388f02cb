package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	relayGrace = 15 * time.Second
	// killTimeout bounds the wait for processes that were killed: some cannot be.
	killTimeout = 5 * time.Second
)

// relayLimits are bounds of a relay.
type relayLimits struct {
	streams int           // at a time
	request time.Duration // for the request with which a stream begins
	// A manager that was silent for interval is asked for a sign of life, and has timeout to give one.
	interval, timeout time.Duration
}

var defaultRelayLimits = relayLimits{
	streams:  16 << 10,
	request:  30 * time.Second,
	interval: 15 * time.Second,
	timeout:  30 * time.Second,
}

// RelayConfig says what a relay may reach and how it ends processes.
type RelayConfig struct {
	// TempDir is an absolute path. Sockets below TempDir/gitlab-runner-steps, or
	// gitlab-runner-steps-<uid>, can be connected to, and no others. If empty, /tmp.
	TempDir string

	// Grace is the time between SIGTERM and SIGKILL for a process whose stream has ended. If zero, 15 s:
	// time for a serve to stop its jobs, with their grace, and to clean up.
	// If negative, none: SIGKILL at once.
	Grace time.Duration

	// Version is that of this program, for the manager to know. If empty, it is not told.
	Version string
}

// Relay starts processes and connects to the sockets of builds for a manager, which asks for both over
// stdio.In and stdio.Out: any number at a time, each by a yamux stream (docs/protocol.md). It writes nothing
// else to Out; notices go to Err. It runs until
//
//   - stdio.In ends, which is the manager's end: the error is nil;
//   - ctx ends; the caller lets SIGTERM, SIGINT and SIGHUP end it;
//   - the manager says what makes no sense, takes nothing any more, or gives no sign of life for 45 s.
//
// At the end it hangs up, so that the manager knows of what still ran that it was lost, not how it ended, and stops
// every process (SIGTERM to its process group, Grace, SIGKILL) and all that descends from one. It waits for all of that, which is bounded, and returns what could not be
// killed. If it is killed itself, its processes get SIGTERM and their stdin ends.
//
// It must be the only one in its program to start processes: while it runs the program is the parent of all
// orphans that descend from it (PR_SET_CHILD_SUBREAPER, prctl(2)), reaps all its children, and in the end
// kills those that were not there before. From its call on other processes of the user cannot look into this one
// (PR_SET_DUMPABLE).
func Relay(ctx context.Context, stdio Stdio, cfg RelayConfig) error {
	if err := conceal(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return runRelay(ctx, stdio, cfg, defaultRelayLimits, syscall.ForkExec)
}

// runRelay is Relay with its limits and what starts its processes.
func runRelay(ctx context.Context, stdio Stdio, cfg RelayConfig, limits relayLimits, fork forkExec) error {
	defer withstandSIGPIPE()()
	if cfg.TempDir == "" {
		cfg.TempDir = "/tmp"
	}
	if !filepath.IsAbs(cfg.TempDir) {
		return fmt.Errorf("relay: temporary directory %q is not an absolute path", cfg.TempDir)
	}
	link, err := openRelayLink(stdio)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer link.finish()
	if err := link.shakeHands(ctx, cfg.Version); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	children, err := adopt(fork)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer children.release()
	session, err := yamux.Server(link, wire.RelayConfig(wire.MaxRelayWindow))
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	r := &relay{
		tempDir:   filepath.Clean(cfg.TempDir),
		grace:     graceOf(cfg.Grace, relayGrace),
		limits:    limits,
		log:       &notices{w: stdio.Err},
		link:      link,
		session:   session,
		children:  children,
		sockets:   newReadySockets(),
		failed:    make(chan error, 1),
		closing:   make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	r.spares = &spares{relay: r}
	r.life, r.endLife = context.WithCancel(context.WithoutCancel(ctx))
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// relay is a relay that has shaken hands. Its goroutines are one that accepts streams, one that watches for
// signs of life, one that sweeps, and those of its streams; run waits for all of them.
type relay struct {
	tempDir string
	grace   time.Duration
	limits  relayLimits
	log     *notices

	link     *relayLink
	session  *yamux.Session
	children *children
	sockets  *readySockets
	spares   *spares

	life    context.Context // of everything but processes; ends once those have
	endLife context.CancelFunc

	failed    chan error    // why the relay is to end; has room for the first reason
	closing   chan struct{} // closed when it is about to end: processes are to be stopped
	abandoned chan struct{} // closed when what has not ended by now is given up

	count   atomic.Int64   // of streams that are being served
	streams sync.WaitGroup // accept alone adds to it

	mu        sync.Mutex // held to close closing, and to add to the following, which is not done after that
	processes sync.WaitGroup
}

// run serves the manager until it has gone, ctx ends or something fails, and cleans up.
func (r *relay) run(ctx context.Context) error {
	var own sync.WaitGroup
	own.Go(r.accept)
	own.Go(r.watch)
	own.Go(r.sweep)
	var reason error
	select {
	case <-ctx.Done():
		reason = context.Cause(ctx)
	case reason = <-r.failed:
	}
	// Before any process is stopped: how it ends then is not its own end, and nobody is to take it for that.
	r.hangUp()
	r.mu.Lock()
	close(r.closing)
	r.mu.Unlock()
	defer time.AfterFunc(r.grace+killTimeout, func() { close(r.abandoned) }).Stop()
	r.processes.Wait()
	r.spares.close()
	own.Wait()
	r.streams.Wait()
	var left error
	if n := r.children.killAll(killTimeout); n > 0 {
		left = fmt.Errorf("%d processes could not be killed", n)
	}
	if errors.Is(reason, errLeash) {
		reason = nil
	}
	return errors.Join(reason, left)
}

// hangUp ends the session, and with it all streams. It is idempotent.
func (r *relay) hangUp() {
	_ = r.session.Close() // always nil
	r.endLife()
}

// fail ends the relay.
func (r *relay) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// beginProcess counts a process that is about to be started, unless the relay is about to end.
func (r *relay) beginProcess() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(r.closing) {
		return false
	}
	r.processes.Add(1)
	return true
}

// watch ends the relay when the manager gives no sign of life.
func (r *relay) watch() {
	var ping sync.WaitGroup
	defer ping.Wait()
	ask := func() {
		ping.Go(func() { _, _ = r.session.Ping() }) // what counts is that something comes
	}
	if err := alive.Watch(r.session.CloseChan(), r.limits.interval, r.limits.timeout, r.link.heard, ask); err != nil {
		r.fail(fmt.Errorf("the manager gave %w", err))
	}
}

// sweep removes what serves that were killed have left behind. There may be no base at all.
func (r *relay) sweep() {
	for _, name := range ourBases() {
		b, err := findBase(filepath.Join(r.tempDir, name))
		found := (*foundError)(nil)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.As(err, &found) && found.foreign():
			continue
		case err == nil:
			err = b.sweep(r.life)
			b.close()
		}
		if err != nil && r.life.Err() == nil {
			r.log.printf("%v", err)
		}
	}
}

// ourBases returns the names the socket base of our user can have.
func ourBases() []string {
	return []string{wire.SocketBase, wire.SocketBase + "-" + strconv.Itoa(os.Geteuid())}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
