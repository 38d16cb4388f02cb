package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
	"github.com/stepmux/stepmux/remote/stale"
)

const (
	defaultGrace = 15 * time.Second
	// killTimeout bounds the wait for killed processes: the kernel may be unable to end one.
	killTimeout = 5 * time.Second
	// sweepTimeout bounds the last sweep. The next relay or serve removes the rest of a large directory.
	sweepTimeout = 5 * time.Second
)

// limits are the bounds of a relay.
type limits struct {
	streams int           // at a time
	request time.Duration // for the request with which a stream begins
	// A manager that was silent for interval is pinged, and has timeout to answer.
	interval, timeout time.Duration
	stall             time.Duration // bounds a write that the manager does not read
}

var defaultLimits = limits{
	streams: 16 << 10, request: 30 * time.Second, interval: 15 * time.Second, timeout: 30 * time.Second,
	stall: wire.RelayStall,
}

// Config says which sockets a relay may reach and how it ends processes.
type Config struct {
	// TempDir is an absolute path. The relay connects only to sockets below TempDir/gitlab-runner-steps or
	// TempDir/gitlab-runner-steps-<uid>. If empty, /tmp.
	TempDir string

	// Grace is the time between SIGTERM and SIGKILL for a process whose stream has ended. If zero, 15 s: enough for a
	// serve to stop its jobs, with their grace, and to clean up. If negative, none: SIGKILL at once.
	Grace time.Duration

	// Version is the version of this program. The hello has it for the manager, unless it is empty.
	Version string

	// Stay makes Run wait at its end for the step runners that linger. A container needs that, because it ends with its
	// main process.
	Stay bool
}

// Run relays for the manager at in and out until in ends (then the error is nil), ctx ends, or the manager breaks the
// protocol, takes no more bytes or gives no sign of life for 45 s. Notices go to log.
//
// Before it returns it stops every process it has started and all descendants, except for step runners that linger, and
// removes the directories of dead step runners. It waits for that. The error says how many processes could not be
// killed. With Stay it then waits for the step runners that linger, until ctx ends.
//
// While it runs, the program is a child subreaper and no other part of it may start processes (see [proc.Children]).
func Run(ctx context.Context, in, out *os.File, log io.Writer, cfg Config) error {
	return run(ctx, in, out, log, cfg, defaultLimits, syscall.ForkExec)
}

// run is Run with its limits and the function that starts processes.
func run(ctx context.Context, in, out *os.File, log io.Writer, cfg Config, bounds limits, fork proc.ForkExec) error {
	defer pipe.WithstandSIGPIPE()()
	if cfg.TempDir == "" {
		cfg.TempDir = "/tmp"
	}
	if !filepath.IsAbs(cfg.TempDir) {
		return fmt.Errorf("temporary directory %q is not an absolute path", cfg.TempDir)
	}
	link, err := openLink(in, out, bounds.stall)
	if err != nil {
		return err
	}
	defer link.finish()
	if err := link.shakeHands(ctx, cfg.Version); err != nil {
		return err
	}
	children, err := proc.Adopt(fork)
	if err != nil {
		return err
	}
	defer children.Release()
	r := &relay{
		tempDir:   filepath.Clean(cfg.TempDir),
		grace:     max(cmp.Or(cfg.Grace, defaultGrace), 0),
		limits:    bounds,
		log:       pipe.NewNotices(log),
		link:      link,
		children:  children,
		sockets:   newReadySockets(),
		closing:   make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	r.session = streams.New(streams.Config{
		In: link.buffered, Out: link.gathered, Window: wire.MaxRelayWindow, Accept: r.accept,
	})
	r.spares = &spares{relay: r}
	r.life, r.endLife = context.WithCancel(context.WithoutCancel(ctx))
	serving, fail := context.WithCancelCause(ctx)
	r.fail = fail
	err = r.run(serving)
	if cfg.Stay {
		link.finish()
		children.AwaitSpared(ctx)
		awaitForeign(ctx)
	}
	return err
}

// relay is a relay that has exchanged hellos. Its goroutines are one that receives, one that watches for signs of life,
// one that sweeps, and those of its streams; run waits for all of them.
type relay struct {
	tempDir string
	grace   time.Duration
	limits  limits
	log     *pipe.Notices

	link     *link
	session  *streams.Session
	children *proc.Children
	sockets  *readySockets
	spares   *spares
	tools    tools

	life    context.Context // governs everything but processes; ends after them
	endLife context.CancelFunc

	fail      func(error)   // ends the relay; the first reason counts
	closing   chan struct{} // closed when the relay is about to end and stops its processes
	abandoned chan struct{} // closed when the relay gives up the processes that have not ended

	count   atomic.Int64   // of open streams
	streams sync.WaitGroup // the session's Run alone adds to it

	mu        sync.Mutex // held to close closing, and to add to processes, which is not allowed after that
	processes sync.WaitGroup
}

// run serves the manager until it has gone, ctx ends or something fails, and cleans up.
func (r *relay) run(ctx context.Context) error {
	var own sync.WaitGroup
	own.Go(func() { _ = r.session.Run() }) // watch reports its error
	own.Go(r.watch)
	own.Go(r.sweep)
	<-ctx.Done()
	reason := context.Cause(ctx)
	// Hang up before any process is stopped. Otherwise the manager would take our SIGTERM for the process's own end.
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
	if n := r.children.KillAll(); n > 0 {
		left = fmt.Errorf("%s could not be killed", plural.Count(n, "process"))
	}
	left = errors.Join(left, r.tools.remove(context.WithoutCancel(ctx)))
	r.sweepLast(ctx)
	if errors.Is(reason, pipe.ErrLeash) {
		reason = nil
	}
	return errors.Join(reason, left)
}

// hangUp ends the session, and with it all streams. It is idempotent.
func (r *relay) hangUp() {
	r.session.Close()
	_ = r.link.Close() // always nil
	r.endLife()
}

// beginProcess counts a process that is about to be started. It returns false if the relay is closing.
func (r *relay) beginProcess() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pause.Done(r.closing) {
		return false
	}
	r.processes.Add(1)
	return true
}

// watch ends the relay when the session has ended or the manager gives no sign of life.
func (r *relay) watch() {
	var ping sync.WaitGroup
	defer ping.Wait()
	ask := func() {
		ping.Go(r.session.Ping) // any byte received counts as an answer
	}
	err := alive.Watch(r.session.Done(), r.limits.interval, r.limits.timeout, r.link.pulse.Heard, ask)
	if err != nil {
		r.fail(fmt.Errorf("the manager gave %w", err))
	} else {
		r.fail(r.link.reason(r.session.Err()))
	}
}

// sweep ends the processes of killed serves, and removes the directories of these serves.
func (r *relay) sweep() {
	for _, err := range stale.Sweep(r.life, r.tempDir) {
		r.log.Printf("%v", err)
	}
}

// sweepLast removes the directories of serves that the end of this relay has killed. Their inits would remove them, but
// were killed too.
func (r *relay) sweepLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	_ = socketdir.Sweep(ctx, r.tempDir) // the next sweep reports directories that cannot be removed
}
