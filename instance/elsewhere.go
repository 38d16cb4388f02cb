package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/docker"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// maxTries bounds the instances that a build tries to reach.
const maxTries = 3

// prepare is Prepare, also for a build that goes to another instance.
func (e *Executor) prepare(ctx context.Context) error {
	for {
		if err := e.take(ctx); err == nil || !e.tryElsewhere(ctx, err) {
			return err
		}
	}
}

// take takes a slot and a lease on its instance's connection.
func (e *Executor) take(ctx context.Context) error {
	group := e.provider.cfg.Group
	place := group.queue(e.build.ID, e.demand(), !e.Started().IsZero())
	if e.build.Queued != nil {
		e.build.Queued()
		e.build.Queued = nil
	}
	s, err := group.await(ctx, place)
	if err != nil {
		if e.refused != nil {
			err = fmt.Errorf("%w; before: %w", err, e.refused)
		}
		return err
	}
	if !e.keep(func() { e.slot, e.started = s, time.Now() }) {
		s.giveBack()
		return ErrCleanedUp
	}
	if e.build.Placed != nil {
		e.build.Placed(s.member.ID)
	}
	if s.member.Cluster != nil {
		return nil // each build makes its own connections
	}
	lease, err := e.provider.conns.Acquire(ctx, pool.Key(s.member.ID))
	if err == nil {
		group.reached(s)
	} else if lease, err = e.waitFor(ctx, s, err); err != nil {
		return fmt.Errorf("instance %s: %w", s.member.ID, err)
	}
	if !e.keep(func() { e.lease = lease }) {
		lease.Release()
		return ErrCleanedUp
	}
	return nil
}

// demand returns the build's requirements for its instance.
func (e *Executor) demand() demand {
	return demand{tried: e.tried, on: e.build.On, labels: e.build.Labels}
}

// demandBeside is demand for an instance other than that of the slot.
func (e *Executor) demandBeside(s *slot) demand {
	of := e.demand()
	of.tried = append(slices.Clone(of.tried), s.member.ID)
	return of
}

// tryElsewhere reports whether the build may be tried on another instance after err, because nothing of its job has
// started. If so, it ends the build's step runner, and releases the slot and the lease, as far as there are any.
func (e *Executor) tryElsewhere(ctx context.Context, err error) bool {
	e.mu.Lock()
	s, lease, c := e.slot, e.lease, e.connector
	stays := e.stays || e.running != nil // its commands may have prepared the instance for the job
	e.mu.Unlock()
	failed, gone, changed := (*dialError)(nil), outOfServiceError(""), errors.Is(err, errChanged)
	group := e.provider.cfg.Group
	switch {
	case s == nil || stays:
		return false
	case c != nil:
		if e.box != nil || !neverRan(err) {
			return false
		}
	case changed: // the instance is now reached in another way, so it may be tried again
		s.giveBack()
		return e.keep(func() { e.slot = nil })
	case !errors.As(err, &failed) && !errors.As(err, &gone) && !errors.Is(err, ErrUnknown) &&
		!errors.Is(err, docker.ErrUnusable):
		return false
	default:
		s.giveBack() // the build has not reached it
	}
	e.tries++
	e.tried = append(e.tried, s.member.ID)
	via := (*viaError)(nil)
	for on := err; errors.As(on, &via); on = via.err {
		e.tried = append(e.tried, via.via)
	}
	e.refused = err
	if e.tries >= maxTries || !group.hasOther(e.demand(), c != nil) {
		return false
	}
	reason := err
	if failed != nil {
		reason = failed.err
	}
	e.provider.cfg.Logger.Warn("build goes to another instance",
		"build", e.build.ID, "instance", s.member.ID, "error", reason)
	var left []string
	if c != nil {
		_ = c.Close(ctx) // Left has the rest
		left = leftOn(s, c)
	}
	if lease != nil {
		lease.Release()
	}
	s.release()
	return e.keep(func() { e.slot, e.lease, e.connector, e.left = nil, nil, nil, append(e.left, left...) })
}

// neverRan reports whether err, of a Connector's Connect, says that the step runner does not run because of its
// instance, or of the way to it.
func neverRan(err error) bool {
	failed, ok := errors.AsType[*connector.ServeError](err)
	return ok && !failed.Ready || mux.IsLost(err) || errors.Is(err, mux.ErrForbidden)
}
