package instance

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Executor runs one build on one instance. Call Prepare, then Connect and Execute (for steps), Run (a shell script)
// or Client (a runner's own commands), and finally Cleanup. If the build lingers, another process can take over its
// steps: it calls Resume instead of Prepare and Connect. Every error is a [*BuildError]. One goroutine calls the
// methods, in this order, Prepare once, and Connect once unless [BuildError].Elsewhere says otherwise. Cleanup and
// Leave may be called by any goroutine at any time.
type Executor struct {
	provider *Provider
	build    Build
	log      *buildlog.Log

	life context.Context // ends with Cleanup
	end  context.CancelCauseFunc

	tries   int           // number of instances that could not be reached, or failed the build before its first command
	tried   []string      // their IDs, and those of their jump hosts that could not be reached
	trying  time.Duration // on them
	refused error         // the reasons of those that the build has left
	// awaitSince is when an instance first refused the build's connection; zero before.
	awaitSince time.Time
	unbegun    error // why the last Execute did not begin the job, if another instance may take it

	mu        sync.Mutex    // guards the following
	place     *list.Element // in the queue for a slot, between Queue and Prepare or Cleanup
	reserved  *slot         // that Queue got, until Prepare or Cleanup
	slot      *slot
	started   time.Time // when the slot was taken
	lease     *pool.Lease[*mux.Conn]
	connector *connector.Connector
	box       *box          // the build's container or pod; nil for a build on the instance itself
	resumed   bool          // another process began the build
	running   chan struct{} // not nil while Run runs; closed at its end
	clients   []*Client
	stays     bool // on its instance, for which there was a Client
	cleaned   bool
	leaves    bool     // Cleanup leaves the build to another process
	left      []string // see Left; on instances that the build has left for others

	start flight.Flight[*connector.Connector] // starts the step runner for scripts and commands that linger, once
}

// bind returns a context that ends with ctx and with life. finish, which the caller defers, turns a method's error
// into a BuildError, or into closed if the end of life is its cause, and releases the context.
func bind(ctx, life context.Context, closed error) (bound context.Context, finish func(*error)) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(closed) })
	return bound, func(err *error) {
		stop()
		cancel(nil)
		// Only Cleanup closes the connector, before it ends life.
		if *err != nil && ctx.Err() == nil && (life.Err() != nil || errors.Is(*err, connector.ErrClosed)) {
			*err = closed
		}
		*err = classify(ctx, *err)
	}
}

// Prepare takes a slot on an instance, for which it may have to wait, and connects to the instance. If that fails,
// Prepare tries others, three in all.
func (e *Executor) Prepare(ctx context.Context) (err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	if e.Instance() != "" {
		return errors.New("instance: Prepare called twice")
	}
	return e.prepare(ctx)
}

// keep runs set under the lock unless Cleanup has been called.
func (e *Executor) keep(set func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cleaned {
		return false
	}
	set()
	return true
}

// Instance returns the ID of the build's instance. It is empty before Prepare.
func (e *Executor) Instance() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slot == nil {
		return ""
	}
	return e.slot.placement.ID
}

// Started returns when the build got its slot. It is zero before Prepare.
func (e *Executor) Started() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

// Choice returns the routes that the build uses.
func (e *Executor) Choice() connector.Choice {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return connector.Choice{}
	}
	return e.connector.Choice()
}

// Isolation returns how far the build was separated from the rest of its instance. It is zero until Execute has
// returned, and if the step runner did not report it.
func (e *Executor) Isolation() program.Isolation {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return program.Isolation{}
	}
	i := e.connector.Isolation()
	if e.box != nil && i.Level == vmconfig.Off && i.Reason == "" {
		i.Reason = "the build has a container of its own"
		if spec, ok := e.build.Place.(*docker.Spec); ok && spec.Container != "" {
			i.Reason = "the build shares a container that was there before"
		}
	}
	return i
}

// Usage returns the time and memory of the build's processes. It is zero until Execute has returned, and if the step
// runner did not report it.
func (e *Executor) Usage() program.Usage {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return program.Usage{}
	}
	return e.connector.Usage()
}

// Connect starts the build's step runner and returns a function that opens connections to it, each a net.Conn. The
// caller closes each connection; gRPC calls over it (grpc.WithContextDialer) need Credentials. ctx bounds the start
// only. The step runner lives until Cleanup, so that a cancelled build can still be told to stop and its last output be
// read.
//
// If the instance can no longer be reached, or its Docker daemon for a build in a container, the build goes to another
// instance, as in Prepare. So does a build on the instance itself whose step runner does not start there, or whose
// connection is lost first, unless all other instances are suspect: then a build that lingers waits for its own
// instance. A build that has had a Client, or called Run, stays on its instance.
//
// If the instance then fails the job before its first command (Elsewhere is set in the error of Execute), Connect may
// be called again, and takes the build to another instance.
func (e *Executor) Connect(ctx context.Context) (_ func() (io.ReadWriteCloser, error), err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	for {
		var dial func() (io.ReadWriteCloser, error)
		err := e.unbegun
		if e.unbegun = nil; err == nil {
			dial, err = e.connect(ctx, "")
		}
		if err == nil || ctx.Err() != nil || !e.tryElsewhere(ctx, err) {
			return dial, e.withReasons(err)
		}
		if err := e.prepare(ctx); err != nil {
			return nil, err
		}
	}
}

// connect starts the build's step runner, or attaches to the one with this socket.
func (e *Executor) connect(ctx context.Context, attach string) (_ func() (io.ReadWriteCloser, error), err error) {
	e.mu.Lock()
	s, connected := e.slot, e.connector != nil
	prepared := s != nil && (e.lease != nil || s.placement.Cluster != nil)
	e.mu.Unlock()
	switch {
	case !prepared:
		return nil, errors.New("instance: Connect before Prepare")
	case connected:
		return nil, errors.New("instance: Connect called twice")
	}
	if err := s.placement.linux(); err != nil {
		return nil, err
	}
	cfg := e.provider.cfg
	leave := e.mayLeave(s)
	var started atomic.Bool
	into := connector.Config{
		VM: s.placement.vm, BuildID: e.build.ID,
		Runner: s.placement.Runner, Options: s.placement.Options, Route: cfg.Route,
		Bootstrap: cfg.Bootstrap, Version: cfg.Version, Log: e.log, Trace: cfg.Trace,
		LogTimeout: cfg.LogTimeout, ReadyTimeout: cfg.ReadyTimeout, StopTimeout: cfg.StopTimeout,
		Secret: e.build.Secret, Attach: attach,
		Reconnect: func(ctx context.Context) (connector.Lease, error) {
			lease, err := e.reconnect(ctx, s, func() bool { return !started.Load() && leave() })
			if err != nil {
				return nil, err
			}
			return sharedConn{lease}, nil
		},
		Logger: cfg.Logger.With("build", e.build.ID, "instance", s.placement.ID),
	}
	into.Linger = e.linger(s)
	if e.build.Place != nil {
		into.Options = into.InContainer()
	}
	err = e.leaseFor(ctx, s, &into, leave)
	if errors.Is(err, place.ErrUnusable) {
		cfg.Group.started(s, err)
	}
	if err != nil {
		return nil, err
	}
	c, err := connector.New(into)
	if err != nil {
		into.Lease.Release()
		return nil, err
	}
	if !e.keep(func() { e.connector = c }) {
		return nil, errors.Join(ErrCleanedUp, c.Close(ctx))
	}
	// ctx bounds the start only; after it the step runner lives as long as the executor.
	life, end := context.WithCancelCause(e.life)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	dial, err := c.Connect(life) //nolint:contextcheck // see above
	if err != nil {
		end(err)
		if ctx.Err() != nil {
			err = notBegun(ctx, err)
		}
		// Without another instance, all builds would wait to fail one after the other.
		if attach == "" && e.box == nil && neverRan(err) && cfg.Group.hasOther(e.demandBeside(s), true) {
			cfg.Group.started(s, err)
		}
		return nil, e.box.explain(ctx, err)
	}
	started.Store(true)
	cfg.Group.started(s, nil)
	return dial, nil
}

// leaseFor starts the build's place, which is the connector's lease, or gives the connector a lease of its own on the
// connection of its instance: Prepare's connection may have died since.
func (e *Executor) leaseFor(ctx context.Context, s *slot, into *connector.Config, leave func() bool) error {
	pod, isPod := e.build.Place.(*kubernetes.Spec)
	switch isCluster := s.placement.Cluster != nil; {
	case isPod && isCluster:
		return e.startPod(ctx, s, into, *pod)
	case isCluster:
		return fmt.Errorf("instance: a build on the cluster %s needs a Place that is a pod", s.placement.ID)
	case isPod:
		return fmt.Errorf("instance %s is no cluster: no pod can be made there", s.placement.ID)
	}
	lease, err := e.leaseToStart(ctx, s, leave)
	if err != nil {
		return err
	}
	switch spec := e.build.Place.(type) {
	case nil:
		into.Lease = sharedConn{lease}
		return nil
	case *docker.Spec:
		return e.startContainer(ctx, s, lease, into, *spec)
	default:
		lease.Release()
		return fmt.Errorf("instance: no place can be made of a %T", spec)
	}
}

// again takes another lease on the connection of the build's instance.
func (e *Executor) again(ctx context.Context, s *slot) (*pool.Lease[*mux.Conn], error) {
	lease, err := e.provider.conns.Acquire(ctx, pool.Key(s.placement.ID))
	for errors.Is(err, errChanged) {
		lease, err = e.provider.conns.Acquire(ctx, pool.Key(s.placement.ID))
	}
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", s.placement.ID, err)
	}
	return lease, nil
}

// Credentials returns the secret for gRPC calls over connections of Connect's function, for the caller's own client
// (grpc.WithPerRPCCredentials). It is nil before Connect, and for step runners of a kind without secrets.
func (e *Executor) Credentials() credentials.PerRPCCredentials {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return nil
	}
	return e.connector.Credentials()
}

// Execute runs job in the step runner that Connect started. The job's output goes to the build's log. It returns nil
// if the job succeeded. When ctx ends, the job is cancelled with its grace; see [connector.Connector.Execute].
func (e *Executor) Execute(ctx context.Context, job connector.Job) (err error) {
	_, finish := bind(ctx, e.life, ErrCleanedUp) // Cleanup ends the call by closing the connector
	defer finish(&err)
	e.mu.Lock()
	c, s := e.connector, e.slot
	e.mu.Unlock()
	if c == nil {
		return errors.New("instance: Execute before Connect")
	}
	if e.box != nil {
		job.Job = stepmuxv1.PassingAll().With(job.Job)
		job.Image, job.Containers = e.box.place.Image(), e.box.place.Containers()
	}
	job.Resumed = e.resumed
	stop := e.watchProbe(s, &job)
	result, err := c.Execute(ctx, job, e.log)
	stop()
	if err == nil && e.box != nil {
		e.box.place.Note(ctx, result.ExitCode)
	}
	return e.judge(ctx, s, result, err)
}

// Run runs a shell script on the instance over the shared connection; no step runner is needed. It returns nil for
// exit code 0. When ctx ends, the shell and its descendants are stopped, with their grace. If the build lingers, the
// script is a job of a step runner, which Run starts and which must be a stepmux: see [Build.Linger].
func (e *Executor) Run(ctx context.Context, text []byte) (err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	ended := make(chan struct{})
	defer close(ended)
	var lease *pool.Lease[*mux.Conn]
	var s *slot
	if !e.keep(func() { lease, s, e.running = e.lease, e.slot, ended }) {
		return ErrCleanedUp
	}
	switch {
	case e.build.Place != nil:
		return errors.New("instance: Run in a container: only steps run there, by Connect and Execute")
	case lease == nil:
		return errors.New("instance: Run before Prepare")
	case e.linger(s) > 0:
		return e.runLingering(ctx, lingeringScript{
			shell: e.build.Shell, stdin: text, stdout: e.log, stderr: e.log,
		})
	}
	starter, err := e.starter(ctx, s, lease)
	if err != nil {
		return err
	}
	return exitError(script.Run(ctx, starter, script.Script{
		Shell: e.build.Shell, Text: text, Grace: e.provider.cfg.Grace, Stdout: e.log, Stderr: e.log,
		ReadyTimeout: e.provider.cfg.ReadyTimeout, Options: s.placement.Options,
	}))
}

// sharedConn adapts a lease to package connector.
type sharedConn struct{ *pool.Lease[*mux.Conn] }

// Conn implements connector.Lease.
func (s sharedConn) Conn() connector.Conn { return s.Lease.Conn() }

// starter returns the VM's relay or, without one, the connection. Either starts processes on the build's instance.
func (e *Executor) starter(ctx context.Context, s *slot, lease *pool.Lease[*mux.Conn]) (script.Starter, error) {
	if err := s.placement.linux(); err != nil {
		return nil, err
	}
	relay, err := connector.StartRelay(ctx, connector.Config{
		Lease: sharedConn{lease}, VM: s.placement.vm,
		Runner: s.placement.Runner, Options: s.placement.Options, Route: e.provider.cfg.Route,
		Logger: e.provider.cfg.Logger.With("instance", s.placement.ID),
	})
	if relay == nil {
		return lease.Conn(), err
	}
	return relay, nil
}

// exitError turns an exit code that is not 0 into an error.
func exitError(code int, err error) error {
	if err == nil && code != 0 {
		return &BuildError{Reason: ScriptFailure, ExitCode: code, Err: fmt.Errorf("exit status %d", code)}
	}
	return err
}

// Left returns what may be left of the build, once Cleanup has returned: a text for each process or directory, or the
// reason why that is unknown. Each begins with "on ID: ", as a build may have been on several instances. It is
// untrusted text.
func (e *Executor) Left() []string {
	e.mu.Lock()
	s, c, b, left := e.slot, e.connector, e.box, e.left
	e.mu.Unlock()
	if c == nil || b.removed() {
		return left
	}
	return append(slices.Clone(left), leftOn(s, c)...)
}

// Forced returns why Cleanup has ended the build's step runner by `steps end`; see [connector.Connector.Forced].
func (e *Executor) Forced() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return ""
	}
	return e.connector.Forced()
}

// leftOn returns what may be left of a step runner on its instance.
func leftOn(s *slot, c *connector.Connector) []string {
	left := c.Left()
	for i, text := range left {
		left[i] = "on " + s.placement.ID + ": " + text
	}
	return left
}

// Cleanup ends the build's processes on the instance and releases its slot. It may be called at any time, even while
// the build runs, which then fails. It is idempotent. It waits until the step runner, the script and the commands of
// clients are gone and the log is written, but no longer than until ctx ends, StopTimeout for the step runner, as long
// again for its container or pod, and Grace and a second for the others. Its error says what has not ended in time. It
// may be nil although something is left, for example after a lost connection: see [Executor.Left]. The slot is released
// before the log is written. After Cleanup the log is not written to, except by a write that has not returned yet.
func (e *Executor) Cleanup(ctx context.Context) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, e.provider.cfg.StopTimeout)
	defer cancel()
	e.mu.Lock()
	e.cleaned = true
	c, b, lease, s, running, clients := e.connector, e.box, e.lease, e.slot, e.running, e.clients
	leaves, place, reserved := e.leaves, e.place, e.reserved
	e.place, e.reserved = nil, nil
	e.mu.Unlock()
	if reserved != nil {
		reserved.giveBack()
	}
	if place != nil {
		e.provider.cfg.Group.leave(place)
	}
	if leaves && c != nil {
		c.Leave()
	}
	var err error
	var closed <-chan struct{}
	if len(clients) > 0 { // before the step runner ends: it may run their commands
		closed = closeClients(clients)
	}
	if c != nil {
		err = c.Close(ctx) // before life ends, because that would become the cause of all later errors
	}
	e.end(ErrCleanedUp)
	await := func(name string, gone <-chan struct{}) {
		select {
		case <-gone:
			return // it has ended; ctx may have ended because the step runner took all the time
		default:
		}
		select {
		case <-gone:
		case <-ctx.Done():
			err = errors.Join(err, fmt.Errorf("stop %s: still running after the time allowed: %w", name, context.Cause(ctx)))
		}
	}
	if closed != nil {
		await("commands", closed)
	}
	if running != nil {
		await("script", running)
	}
	if starting := e.start.Wait(ctx); starting != nil {
		err = errors.Join(err, fmt.Errorf("stop the start of the step runner: %w", starting))
	}
	if b != nil {
		await("container", b.started)
		err = errors.Join(err, b.close(caller, leaves))
	}
	if lease != nil {
		lease.Release()
	}
	switch {
	case s == nil:
	case lease == nil && b.running() == nil && !e.resumed: // the build did not reach the instance
		s.giveBack()
	default:
		s.release()
	}
	e.log.Close(ctx)
	return classify(context.WithoutCancel(ctx), err)
}
