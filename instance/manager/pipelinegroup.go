package manager

import (
	"context"
	"errors"

	"github.com/stepmux/stepmux/instance/manager/state"
)

// ErrLeftGroup says that a job was cancelled before it had its turn in a concurrency group.
var ErrLeftGroup = errors.New("it was cancelled before its concurrency group was free")

// PipelineTurn is the turn of a job, or of a whole pipeline, in a concurrency group of its project.
type PipelineTurn struct {
	Group string
	// Job is the name of the job. It is empty for the whole pipeline.
	Job string
	// Cancels says that the member that runs shall stop.
	Cancels bool
	// Keeps says that the job runs although the pipeline was cancelled.
	Keeps bool
	// Newer is the error for a member whose place a newer one has taken.
	Newer error
}

// Enter waits until no other member of a group runs. A job runs until leave is called, and a whole pipeline until it is
// at rest. The context that Enter returns ends, with the cause Newer, when a newer member wants this one to stop: for a
// whole pipeline, because that is cancelled then. Without an error the caller calls leave, which waits for the
// goroutine that Enter has begun. If a newer member takes the place of this one, the error is Newer. tell gets the
// pipeline for which it waits.
//
// A member that has run in an earlier life of the pipeline does not wait. A job of a pipeline that was cancelled does
// not join: Build ends it.
func (p *PipelineRun) Enter(
	ctx context.Context, t PipelineTurn, tell func(holder string),
) (own context.Context, leave func(), err error) {
	g := &turn{
		PipelineTurn: t, p: p, name: p.asked.GetRepository() + "\n" + t.Group,
		id: state.PipelineBuildID(p.id, t.Job, p.round(t.Job), 1),
	}
	at, err := g.wait(ctx, tell)
	if err != nil && ctx.Err() == nil && p.ends(t.Keeps) {
		err = ErrLeftGroup
	}
	if err != nil && p.life.Err() == nil {
		err = errors.Join(err, g.leave(state.Gone)) //nolint:contextcheck // ctx has ended
	}
	if err != nil {
		return ctx, nil, err
	}
	switch at {
	case state.Runs, state.Stops:
		if t.Job == "" {
			p.turn = g
		}
		own, leave = g.hold(ctx, at)
		return own, leave, nil
	case state.Replaced:
		return ctx, nil, errors.Join(t.Newer, g.leave(at)) //nolint:contextcheck // as above
	case state.Done: // a manager may have ended before it gave the place back
		return ctx, func() {}, g.leave(at) //nolint:contextcheck // as above
	default:
		if p.ends(t.Keeps) && t.Job != "" {
			return ctx, func() {}, nil
		}
		return ctx, nil, ErrLeftGroup
	}
}

// turn is a PipelineTurn of a pipeline.
type turn struct {
	PipelineTurn
	p    *PipelineRun
	name string // of the group, with the project
	id   string // of the member
}

// wait waits until the member does not wait any more, and returns where it stands. It does not join a group, or wait
// for it, if the pipeline was cancelled.
func (g *turn) wait(ctx context.Context, tell func(holder string)) (at state.Place, err error) {
	store, told := g.p.m.store, ""
	step := func() (more bool, err error) {
		holder := ""
		err = store.Persist(ctx, func(ctx context.Context) (err error) {
			if g.p.ends(g.Keeps) {
				at, err = store.Place(ctx, g.name, g.id)
			} else {
				at, holder, err = store.Advance(ctx, g.name, g.id, g.Cancels)
			}
			return err
		})
		if more = err == nil && at == state.Waits && !g.p.ends(g.Keeps); more && holder != told {
			told = holder
			tell(state.PipelineOf(holder))
		}
		return more, err
	}
	if !g.p.ends(g.Keeps) {
		var free func()
		ctx, free = g.p.bound(ctx, PipelineAttempt{Keeps: g.Keeps})
		defer free()
	}
	if more, err := step(); !more || err != nil {
		return at, err
	}
	err = store.WatchGroup(ctx, g.name, step)
	return at, err
}

// hold lets the member run until leave is called, or until it shall stop.
func (g *turn) hold(ctx context.Context, at state.Place) (own context.Context, leave func()) {
	own, stop := context.WithCancelCause(ctx)
	watching, end := context.WithCancel(g.p.life)
	done := make(chan struct{})
	if at == state.Stops { // before its build begins
		g.stop(stop) //nolint:contextcheck // as other changes of the record
		close(done)
	} else {
		go func() {
			defer close(done)
			if g.watch(watching) {
				g.stop(stop)
			}
		}()
	}
	return own, func() {
		end()
		<-done
		if as := state.Done; g.Job != "" && g.p.life.Err() == nil {
			if errors.Is(context.Cause(own), g.Newer) {
				as = state.Replaced
			}
			_ = g.leave(as) // it fails at the end of the manager only: the next one leaves
		}
		stop(nil)
	}
}

// watch waits until the member shall stop. It returns false if ctx ends before.
func (g *turn) watch(ctx context.Context) bool {
	store := g.p.m.store
	return store.WatchGroup(ctx, g.name, func() (more bool, err error) {
		at := state.Runs
		err = store.Persist(ctx, func(ctx context.Context) (err error) {
			at, err = store.Place(ctx, g.name, g.id)
			return err
		})
		return at != state.Stops, err
	}) == nil
}

// stop stops the job, or cancels the whole pipeline: in its record first, so that the next manager does the same.
func (g *turn) stop(stop context.CancelCauseFunc) {
	if g.Job != "" {
		stop(g.Newer)
		return
	}
	_ = g.p.change(func(r *state.Pipeline) { // it fails at the end of the manager only
		if !r.Canceled {
			r.Canceled, r.Replaced = true, g.Newer.Error()
		}
	})
}

// leave keeps how the member has left its group.
func (g *turn) leave(as state.Place) error {
	return g.p.m.store.Persist(g.p.life, func(ctx context.Context) error {
		return g.p.m.store.Leave(ctx, g.name, g.id, as)
	})
}
