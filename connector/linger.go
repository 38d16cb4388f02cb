package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// lingerPause is the longest pause between two attempts to reach a build again.
	lingerPause = 250 * time.Millisecond
	// attachAfter is how old a build is when its Connector attaches to it. Most are shorter, and need no call for it.
	attachAfter = time.Second
	// shortLinger is the linger below which a Connector attaches at once. A link may be silent for 30 s before it counts
	// as lost. A build survives that if its Connector is attached, or if its linger is longer.
	shortLinger = time.Minute
)

// lingering keeps the Connector attached to a build that outlives its connection. When the link is lost, it makes
// another. A link is a build with a lease of its own and the same serve. The Connector owns one goroutine for this,
// keep, which attaches to the step runner and stays attached.
type lingering struct {
	c       *Connector
	manager string // the name of this Connector for the step runner

	life context.Context // ends at the end of Close, or when the build is lost
	end  context.CancelCauseFunc

	rpc      *grpc.ClientConn // nil before it is needed for the first time
	first    *attachment      // made by attachFirst, used by keep; nil if keep is to attach
	attachAt time.Time        // until then keep does not attach, as long as the link is well
	noted    atomic.Bool      // keep passes the notices on, or stop has done so
	ending   atomic.Bool      // stop has begun
	replaced atomic.Bool      // another manager has the build
	gone     atomic.Bool      // the step runner was found to be gone

	turn chan struct{} // held while a bridge is opened, and while a link is made for it

	mu    sync.Mutex              // guards the following
	last  error                   // why the last attempt to reconnect failed
	again context.CancelCauseFunc // ends the first attempt to reach the step runner; nil once one has succeeded
}

func newLingering(c *Connector) *lingering {
	l := &lingering{c: c, manager: wire.Starter, turn: make(chan struct{}, 1)}
	if c.cfg.Attach != "" {
		l.manager = wire.NewManager()
	}
	l.life, l.end = context.WithCancelCause(context.WithoutCancel(c.life))
	return l
}

// knowsLinger returns an error if the VM's step runner cannot outlive its connection.
func knowsLinger(p *program.Program) error {
	if p.Linger {
		return nil
	}
	return fmt.Errorf("the step runner on the VM (%s) does not know --linger: install this version there, "+
		"or run the build without linger", p)
}

// lost ends the build because of err.
func (l *lingering) lost(err error) {
	l.c.end(err)
	l.end(err)
}

// start is Connector.start, repeated over new links while the connection is lost, for as long as the linger. Nothing
// of the job runs yet. A serve that an earlier attempt started is found again, or started again if it has ended.
func (l *lingering) start() (b *build, err error) {
	until := time.Now().Add(l.c.cfg.Linger)
	var lease Lease // of the connection to use from now on; nil for that of before
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, lingerPause) {
		b, err = l.attempt(lease)
		if err == nil {
			err = l.begin(b, until)
		}
		if err == nil {
			l.c.wg.Go(l.keep)
			return b, nil
		}
		failed, isRelay := errors.AsType[*relay.Error](err)
		neverRan := isRelay && failed.Op == "start" // the link is well
		again := mux.IsLost(err) && !neverRan || isGone(err)
		if !again || l.c.life.Err() != nil || !time.Now().Before(until) {
			return b, err
		}
		l.c.cfg.Logger.Info("the link was lost before the build began; trying again", "error", err)
		if b != nil {
			b.drop()
		}
		_ = pause.For(l.c.life, wait) // if the life ends, Reconnect notices
		ctx, cancel := context.WithDeadline(l.c.life, until)
		var leaseErr error
		lease, leaseErr = l.c.cfg.Reconnect(ctx)
		cancel()
		if leaseErr != nil {
			return nil, errors.Join(err, leaseErr)
		}
	}
}

// attempt starts the step runner, or finds it, over the connection of lease unless that is nil. The client of an
// earlier attempt may ask for a bridge during the attempt: it waits.
func (l *lingering) attempt(lease Lease) (*build, error) {
	select {
	case l.turn <- struct{}{}:
	case <-l.c.life.Done():
		if lease != nil {
			lease.Release()
		}
		return nil, context.Cause(l.c.life)
	}
	defer func() { <-l.turn }()
	if lease != nil {
		if old, _ := l.c.current(); old != nil {
			old.drop() // a bridge may have made it since
		}
		l.use(nil, lease)
	}
	if l.c.cfg.Attach != "" {
		return l.find()
	}
	return l.c.start()
}

// find makes a link to the step runner at Config.Attach.
func (l *lingering) find() (*build, error) {
	c := l.c
	known := &serve{socket: c.cfg.Attach, runner: c.cfg.runner(), detached: true}
	known.ready.Store(true)
	b, err := c.link(c.life, c.currentLease().Conn(), &build{serve: known})
	if err == nil {
		b.publish(b.starter)
	}
	return b, err
}

// attachment is a call that keeps the build attached, with its first answer.
type attachment struct {
	stream grpc.ServerStreamingClient[pb.AttachResponse]
	answer *pb.AttachResponse
}

// attach attaches to the step runner until ctx ends. It returns once the step runner has confirmed.
func (l *lingering) attach(ctx context.Context, offset int64) (*attachment, error) {
	stream, err := pb.NewAttachmentClient(l.rpc).Attach(ctx, &pb.AttachRequest{Offset: offset})
	if err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	return &attachment{stream, answer}, nil
}

// connect makes the gRPC client, unless it is there.
func (l *lingering) connect(b *build) (err error) {
	if l.rpc == nil {
		l.rpc, _, err = b.newClient()
	}
	return err
}

// begin reaches the step runner for the first time. It attaches if another Connector has started the step runner, or if
// the linger is short.
func (l *lingering) begin(b *build, until time.Time) error {
	if err := l.connect(b); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(l.c.life, until)
	defer cancel()
	ctx, again := context.WithCancelCause(ctx)
	defer again(nil)
	l.setAgain(again)
	var err error
	if l.c.cfg.Attach != "" || l.c.cfg.Linger < shortLinger {
		err = l.attachFirst(ctx, b)
	} else {
		l.attachAt = until.Add(attachAfter - l.c.cfg.Linger) // counted from the start: until is a linger after it
		err = l.reach(ctx)
	}
	if err == nil {
		l.setAgain(nil)
	}
	return err
}

func (l *lingering) setAgain(again context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = again
}

// attachFirst attaches to the step runner. The call goes on in keep.
func (l *lingering) attachFirst(ctx context.Context, b *build) error { //nolint:contextcheck // see calls
	calls, end := context.WithCancel(l.life) // the successful call outlives this function
	stop := context.AfterFunc(ctx, end)
	err := retryFor(ctx, b.patience(), func() (_ bool, err error) {
		l.first, err = l.attach(calls, l.c.log.State().Notices)
		return false, err
	})
	if !stop() { // end has been called
		return context.Cause(ctx)
	}
	if err != nil {
		end()
		return err
	}
	return nil
}

// reach waits until the client has a connection to the step runner.
func (l *lingering) reach(ctx context.Context) error {
	for {
		state := l.rpc.GetState()
		switch state { //nolint:exhaustive // it is being made in the others
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			l.rpc.Connect()
		}
		if !l.rpc.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
}

// drop gives up a link and frees its resources.
func (b *build) drop() {
	b.closeBridges()
	b.takeProxy().discard()
	b.giveNative()
	if b.sessions != nil {
		b.sessions.Release()
	}
}

// use makes b the current link, and lease its lease.
func (l *lingering) use(b *build, lease Lease) {
	l.c.mu.Lock()
	before := l.c.lease
	l.c.build, l.c.lease = b, lease
	l.c.mu.Unlock()
	before.Release()
}

// bridge opens a bridge. If the link is lost and the build lingers, bridge first makes another link.
func (b *build) bridge() (net.Conn, error) {
	l := b.c.linger
	if l == nil {
		return b.dial()
	}
	select {
	case l.turn <- struct{}{}:
	case <-l.life.Done():
		return nil, context.Cause(l.life)
	}
	defer func() { <-l.turn }()
	now, _ := l.c.current()
	if now == nil || now.serve == nil {
		return nil, errors.New("the step runner is being started again") // by lingering.start
	}
	bridge, err := now.dial()
	if err == nil || l.life.Err() != nil {
		return bridge, err
	}
	lost := err
	if err = l.check(lost); err == nil {
		err = l.relink(now, lost)
	}
	if err == nil {
		now, _ = l.c.current()
		if bridge, err = now.dial(); err != nil {
			err = cmp.Or(l.check(err), err)
		}
	}
	l.mu.Lock()
	l.last = err
	l.mu.Unlock()
	return bridge, err
}

// isGone reports whether err means that nothing listens on the build's socket, or that its machine is gone.
func isGone(err error) bool {
	refused, ok := errors.AsType[*relay.RefusedError](err)
	return ok && refused.Reason == relay.RefusedNotFound || errors.Is(err, ErrGone)
}

// check ends the build, and returns the build's error, if err means that the step runner is gone.
func (l *lingering) check(err error) error {
	if !isGone(err) {
		return nil
	}
	if l.startAgain(err) {
		return err
	}
	gone := &ServeError{Ready: true, ExitCode: -1, Err: err}
	if !errors.Is(err, ErrGone) {
		gone.Hint = "the step runner ended or was killed while no client was attached, or the VM was restarted"
	}
	l.gone.Store(true)
	l.lost(gone)
	return gone
}

// startAgain ends the first attempt to reach the step runner because of err, and reports whether it was under way.
// Nothing of the job runs then: start can start another step runner, or give the VM up.
func (l *lingering) startAgain(err error) bool {
	l.mu.Lock()
	again := l.again
	l.mu.Unlock()
	if again == nil || l.c.cfg.Attach != "" {
		return false
	}
	again(err)
	return true
}

// relink replaces a link that failed with the error lost.
func (l *lingering) relink(old *build, lost error) error {
	lease, err := l.c.cfg.Reconnect(l.life)
	if err != nil {
		if mux.IsLost(lost) {
			l.startAgain(lost) // Connect ends with the error of Reconnect
		}
		return cmp.Or(l.check(err), err)
	}
	b, err := l.c.link(l.life, lease.Conn(), old)
	if err != nil {
		lease.Release()
		return err
	}
	l.use(b, lease)
	old.drop()
	return nil
}

// link plans how to reach the serve of old over another connection.
func (c *Connector) link(ctx context.Context, conn Conn, old *build) (*build, error) {
	found, err := c.cfg.VM.findProgram(ctx, &c.cfg, conn)
	if err != nil {
		return nil, err
	}
	p, err := c.cfg.VM.plan(ctx, &c.cfg, conn, found.Argv())
	if err != nil {
		return nil, err
	}
	if p.report != nil { // only a build that is starting probes
		p.report(capability{}, 0)
		p.Bridge, p.BridgeReason = p.Start, "whether streamlocal forwarding works is not known"
	}
	if c.moved && p.Bridge == Relay {
		p.Bridge, p.BridgeReason = Session, "the relay reaches step runners in the VM's present TempDir only"
	}
	b := &build{
		c: c, conn: conn, program: found, relay: p.relay, choice: p.Choice, serve: old.serve,
		early: make(chan net.Conn, 1), bridges: map[*bridge]struct{}{}, starter: conn,
	}
	b.native.Store(p.native)
	switch {
	case p.relay != nil:
		b.starter = p.relay
	case p.Bridge == Session:
		if b.sessions, err = conn.Reserve(ctx, 1); err == nil && b.sessions != nil {
			b.starter = b.sessions
		}
	}
	return b, err
}

// keep stays attached to the step runner until the life ends. It notes in the build's log when the link is lost and
// when it is back, and passes on the step runner's notices. If it is detached for longer than the linger, the build
// is lost.
func (l *lingering) keep() {
	log, notices := l.c.log.Remarks(l.c.closing), l.c.log.Notices(l.c.closing)
	defer notices.Flush()
	var away time.Time // when the link was lost; zero while it works
	lost := time.AfterFunc(l.c.cfg.Linger, l.giveUp)
	defer lost.Stop()
	offset, mine := l.c.log.State().Notices, false
	back := func() {
		if lost.Stop(); !away.IsZero() {
			took := time.Since(away).Round(time.Millisecond)
			fmt.Fprintf(log, "the connection to the VM is back after %v\n", took)
			l.c.cfg.Logger.Info("the connection of the build is back", "away", took)
			l.c.cfg.Trace.LinkBack(l.c.cfg.BuildID, took)
		}
		away = time.Time{}
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, lingerPause) {
		err := l.stay(&offset, func(first bool, msg *pb.AttachResponse) {
			if first {
				back()
				wait = 10 * time.Millisecond
			}
			if mine = mine || !l.noted.Swap(true); mine {
				_, _ = notices.WriteAt(msg.GetNotices(), msg.GetOffset()) // never fails
			}
		})
		switch {
		case l.life.Err() != nil, l.ending.Load():
			return
		case status.Code(err) == codes.Aborted:
			l.replaced.Store(true)
			l.lost(errors.New("another manager has attached to the build since: it goes on there"))
			return
		case !broken(err):
			l.lost(fmt.Errorf("attach to the step runner: %w", err))
			return
		case away.IsZero():
			away = time.Now()
			lost.Reset(l.c.cfg.Linger)
			fmt.Fprintf(log, "the connection to the VM is lost (%s); the build continues there for up to %v\n",
				status.Convert(err).Message(), l.c.cfg.Linger)
			l.c.cfg.Logger.Warn("the connection of the build is lost", "linger", l.c.cfg.Linger, "error", err)
		}
		_ = pause.For(l.life, wait) // if the life ends, the loop notices
	}
}

// awaitAge returns when the build is old enough to be attached to, at once after the first time. It returns an error if
// the link is lost before, or the build ends.
func (l *lingering) awaitAge() error {
	if l.attachAt.IsZero() {
		return nil
	}
	young, cancel := context.WithDeadline(l.life, l.attachAt)
	defer cancel()
	l.attachAt = time.Time{}
	lost := l.rpc.GetState() != connectivity.Ready || l.rpc.WaitForStateChange(young, connectivity.Ready)
	if lost || l.life.Err() != nil || l.ending.Load() {
		return status.Error(codes.Unavailable, "the bridge to the step runner has ended")
	}
	return nil
}

// stay attaches to the step runner until the call ends, and returns the call's error. take receives the notices, with
// first set once the step runner has confirmed.
func (l *lingering) stay(offset *int64, take func(first bool, msg *pb.AttachResponse)) error {
	if err := l.awaitAge(); err != nil {
		return err
	}
	now := l.first
	if l.first = nil; now == nil {
		var err error
		if now, err = l.attach(l.life, *offset); err != nil {
			return err
		}
	}
	first := true
	next := func(msg *pb.AttachResponse) error {
		*offset = msg.GetOffset() + int64(len(msg.GetNotices()))
		take(first, msg)
		first = false
		return nil
	}
	_ = next(now.answer) // never fails
	return cmp.Or(receive(now.stream, next), status.Error(codes.Unavailable, "the step runner has ended the call"))
}

// client returns a gRPC client of the step runner. The caller calls done at the end.
func (b *build) client() (client *grpc.ClientConn, done func(), err error) {
	if l := b.c.linger; l != nil {
		return l.rpc, func() {}, nil
	}
	return b.newClient()
}

// patience is how long calls may fail one after the other before they are given up. For a lingering build it is
// unlimited, because its life ends by itself.
func (b *build) patience() time.Duration {
	if b.c.linger != nil {
		return 2 * vmconfig.MaxLinger
	}
	return stallLimit
}
