package pipeline

import (
	"context"
	"errors"
	"time"
)

// Carrier carries nodes out.
type Carrier interface {
	// Carry carries out one attempt of a node, and returns when it has ended. When ctx ends, it stops the attempt; the
	// cause is [ErrFailFast] or that of the run's context. For a node that is [Asked], ctx may have ended before the call.
	// It is called from several goroutines at once, for one node never twice at the same time.
	Carry(ctx context.Context, node, attempt int) Result
}

// ErrFailFast is the cause with which the context of a node ends when another node of a group with FailFast has failed.
var ErrFailFast = errors.New("another job of the group failed")

// Config says how a plan runs. The zero value is valid.
type Config struct {
	// Slots bounds the nodes that run at once, besides those that are Free. If zero, there is no bound.
	Slots int
	// Play is a source of the indexes of Manual nodes to start; those that do not wait for that are ignored. While it is
	// open, the run waits for it when all else has ended. If nil, Manual nodes do not run.
	Play <-chan int
	// Rests says that the run does not wait for Play.
	Rests bool
	// Observe is called with the status of each node whose state has changed, by the goroutine of Run. It is called with
	// the end of a node before another one that needs it starts. May be nil.
	Observe func(node int, s Status)
}

// Run carries the plan out, and returns how the nodes ended. When ctx ends, the nodes that run are stopped, and the
// others do not start. When Run returns, all calls of the carrier have returned, and no goroutine is left.
func (p *Plan) Run(ctx context.Context, carrier Carrier, cfg Config) *Progress {
	l := &loop{
		Progress: p.Begin(time.Now()), ctx: ctx, carrier: carrier, cfg: cfg, play: cfg.Play, done: ctx.Done(),
		stop: map[int]context.CancelCauseFunc{}, ended: make(chan ended),
	}
	for {
		l.start() //nolint:contextcheck // it is in the loop
		if l.Idle() && (l.play == nil || cfg.Rests && len(l.play) == 0) {
			break
		}
		l.wait()
	}
	l.Finish(time.Now())
	l.tell()
	return l.Progress
}

// loop is a run of a plan. It owns a goroutine for each node that runs.
type loop struct {
	*Progress
	ctx     context.Context // of the whole run
	carrier Carrier
	cfg     Config
	play    <-chan int      // nil once it is closed or ctx has ended
	done    <-chan struct{} // nil once the run is cancelled
	stop    map[int]context.CancelCauseFunc
	slots   int // taken
	ended   chan ended
}

// ended is the end of an attempt.
type ended struct {
	node   int
	result Result
}

// start starts all nodes that may start, and stops those that shall.
func (l *loop) start() {
	now := time.Now()
	if l.ctx.Err() != nil {
		l.cancel()
	}
	l.Advance(now)
	l.tell() // of the ends of nodes, before those that need them start
	for {    // after a cancel only those that are Asked
		node, ok := l.Take(l.cfg.Slots <= 0 || l.slots < l.cfg.Slots, now)
		if !ok {
			break
		}
		if !l.plan.Node(node).Free {
			l.slots++
		}
		ctx, stop := context.WithCancelCause(l.ctx)
		l.stop[node] = stop
		attempt := l.Status(node).Attempt
		go func() { l.ended <- ended{node, l.carrier.Carry(ctx, node, attempt)} }()
	}
	for _, node := range l.Stops() {
		if stop := l.stop[node]; stop != nil { // nil: it ended together with the context
			stop(ErrFailFast)
		}
	}
	l.tell()
}

// wait waits for the next event.
func (l *loop) wait() {
	var due <-chan time.Time
	if at, ok := l.Wake(); ok {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-l.done:
	case e := <-l.ended:
		if l.ctx.Err() != nil {
			l.cancel() // first: the node ends because of that
		}
		l.stop[e.node](nil)
		delete(l.stop, e.node)
		if !l.plan.Node(e.node).Free {
			l.slots--
		}
		l.End(e.node, e.result, time.Now())
	case node, open := <-l.play:
		if !open {
			l.play = nil
		} else if node >= 0 && node < l.plan.Len() {
			_ = l.Play(node, time.Now()) // it may have been played
		}
	}
}

// cancel cancels the run, because its context has ended.
func (l *loop) cancel() {
	if l.done != nil {
		l.done, l.play = nil, nil
		l.Cancel(time.Now())
	}
}

// tell calls Observe.
func (l *loop) tell() {
	for _, node := range l.Changes() {
		if l.cfg.Observe != nil {
			l.cfg.Observe(node, l.Status(node))
		}
	}
}
