package whole

import (
	"context"
	"errors"
	"sync"
)

// errReplaced is the cause with which a job ends when a newer one of its group takes its place.
var errReplaced = errors.New("a newer job of its concurrency group took its place")

// groups are the groups of a run, by name. The zero value is ready.
type groups struct {
	mu  sync.Mutex // guards the following
	all map[string]*group
}

// group has the job that runs, and the one that waits. Either may be nil.
type group struct{ running, waiting *turn }

// turn is the turn of a job in its group.
type turn struct {
	stop  context.CancelCauseFunc
	ready chan struct{} // closed once the job runs
}

// enter waits until no other job of the group runs. The context that it returns ends with errReplaced if a newer job
// takes the place of this one. If it ends while the job waits, enter returns its cause. Else the caller calls leave.
func (g *groups) enter(ctx context.Context, name string, cancels bool) (own context.Context, leave func(), err error) {
	own, stop := context.WithCancelCause(ctx)
	t := &turn{stop: stop, ready: make(chan struct{})}
	leave = func() {
		g.leave(name, t)
		stop(nil)
	}
	g.join(name, cancels, t)
	select {
	case <-t.ready:
		return own, leave, nil
	case <-own.Done():
		err := context.Cause(own)
		leave()
		return own, nil, err
	}
}

func (g *groups) join(name string, cancels bool, t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[string]*group{}
	}
	of := g.all[name]
	if of == nil {
		g.all[name] = &group{running: t}
		close(t.ready)
		return
	}
	if of.waiting != nil {
		of.waiting.stop(errReplaced)
	}
	of.waiting = t
	if cancels {
		of.running.stop(errReplaced)
	}
}

func (g *groups) leave(name string, t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.all[name]
	switch {
	case of == nil: // it has left
	case of.waiting == t:
		of.waiting = nil
	case of.running != t: // another one waits in its place
	case of.waiting != nil:
		of.running, of.waiting = of.waiting, nil
		close(of.running.ready)
	default:
		delete(g.all, name)
	}
}
