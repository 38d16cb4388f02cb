package instance

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

const (
	// maxTries bounds the instances that a build tries to reach.
	maxTries = 3
	// maxTrying is the time on instances after which a build tries no other. The wait for a slot does not count.
	maxTrying = time.Minute
)

// prepare is Prepare, also for a build that goes to another instance.
func (e *Executor) prepare(ctx context.Context) error {
	for {
		if err := e.take(ctx); err == nil || !e.tryElsewhere(ctx, err) {
			return e.withReasons(err)
		}
	}
}

// take takes a slot and a lease on its instance's connection.
func (e *Executor) take(ctx context.Context) error {
	group := e.provider.cfg.Group
	var place *list.Element
	var s *slot
	e.keep(func() {
		place, e.place = e.place, nil
		s, e.reserved = e.reserved, nil
	})
	if s == nil {
		if place == nil {
			place = group.queue(e.build.ID, e.build.Party, e.demand(), !e.Started().IsZero())
		}
		var err error
		if s, err = group.await(ctx, place); err != nil {
			return err
		}
	}
	if !e.keep(func() { e.slot, e.started = s, time.Now() }) {
		s.giveBack()
		return ErrCleanedUp
	}
	if e.build.Placed != nil {
		e.build.Placed(s.placement.ID)
	}
	if s.placement.Cluster != nil {
		return nil // each build makes its own connections
	}
	lease, err := e.provider.conns.Acquire(ctx, pool.Key(s.placement.ID))
	if err == nil {
		group.reached(s)
	} else if lease, err = e.waitFor(ctx, s, err); err != nil {
		return fmt.Errorf("instance %s: %w", s.placement.ID, err)
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
	of.tried = append(slices.Clone(of.tried), s.placement.ID)
	return of
}

// tryElsewhere reports whether the build may be tried on another instance after err, because nothing of its job has
// started. If so, it ends the build's step runner, and releases the slot and the lease, as far as there are any.
func (e *Executor) tryElsewhere(ctx context.Context, err error) bool {
	e.mu.Lock()
	s, lease, c := e.slot, e.lease, e.connector
	stays := e.stays || e.resumed || e.running != nil // its commands may have prepared the instance for the job
	e.mu.Unlock()
	failed, gone, changed := (*dialError)(nil), outOfServiceError(""), errors.Is(err, errChanged)
	_ = errors.As(err, &failed)
	group := e.provider.cfg.Group
	switch {
	case s == nil || stays:
		return false
	case c != nil:
		if e.box != nil || !neverRan(err) && !errors.As(err, &neverBeganError{}) {
			return false
		}
	case changed, e.awaits(s, failed): // the instance may be tried again
		if lease != nil {
			lease.Release() // of Prepare's connection, which has ended
		}
		s.giveBack()
		return e.keep(func() { e.slot, e.lease = nil, nil })
	case failed == nil && !errors.As(err, &gone) && !errors.Is(err, ErrUnknown) &&
		!errors.Is(err, place.ErrUnusable):
		return false
	default:
		s.giveBack() // the build has not reached it
	}
	e.tries++
	e.tried = append(e.tried, s.placement.ID)
	via := (*viaError)(nil)
	for on := err; errors.As(on, &via); on = via.err {
		e.tried = append(e.tried, via.via)
	}
	e.trying += time.Since(e.Started())
	waited := failed != nil && !e.awaitSince.IsZero() // then only an instance that works is worth a try
	if e.tries >= maxTries || e.trying > maxTrying || !group.hasOther(e.demand(), c != nil || waited) {
		return false
	}
	if e.refused == nil {
		e.refused = onInstance(s, err)
	} else {
		e.refused = fmt.Errorf("%w; %w", e.refused, onInstance(s, err))
	}
	reason := err
	if failed != nil {
		reason = failed.err
	}
	e.provider.cfg.Logger.Warn("build goes to another instance",
		"build", e.build.ID, "instance", s.placement.ID, "error", reason)
	var left []string
	if c != nil {
		_ = c.Close(ctx) // Left has the rest
		left = leftOn(s, c)
		was := e.log.State() // the next step runner counts from the start
		e.log.Restore(buildlog.State{Open: was.Open, Matched: was.Matched})
	}
	if lease != nil {
		lease.Release()
	}
	s.release()
	return e.keep(func() { e.slot, e.lease, e.connector, e.left = nil, nil, nil, append(e.left, left...) })
}

// onInstance adds the ID of a slot's instance to err, unless it is there.
func onInstance(s *slot, err error) error {
	prefix := "instance " + s.placement.ID + ": "
	if strings.HasPrefix(err.Error(), prefix) {
		return err
	}
	return fmt.Errorf("%s%w", prefix, err)
}

// withReasons adds to err, with which a build fails, why it has left other instances before.
func (e *Executor) withReasons(err error) error {
	if err == nil || e.refused == nil {
		return err
	}
	e.mu.Lock()
	s := e.slot
	e.mu.Unlock()
	if s != nil {
		err = onInstance(s, err)
	}
	return fmt.Errorf("%w; before: %w", err, e.refused)
}

// awaits reports whether the build waits until the instance that failed refers to, or another one, takes it: that one
// may be starting, or have too many logins. The group paces the attempts.
func (e *Executor) awaits(s *slot, failed *dialError) bool {
	most := e.provider.cfg.ConnectWait
	if failed == nil || most <= 0 || failed.permanent || !MayPass(failed) {
		return false
	}
	if e.awaitSince.IsZero() {
		e.awaitSince = time.Now()
	}
	if e.provider.cfg.Group.firstRefusal(s) {
		e.provider.cfg.Logger.Warn("instance takes no connections: builds wait until it or another does",
			"instance", s.placement.ID, "at_most", most, "error", failed.err)
	}
	return time.Since(e.awaitSince) < most
}

// neverRan reports whether err, of a Connector's Connect, says that the step runner does not run because of its
// instance, or of the way to it.
func neverRan(err error) bool {
	failed, ok := errors.AsType[*connector.ServeError](err)
	return ok && !failed.Ready || mux.IsLost(err) || errors.Is(err, mux.ErrForbidden)
}

// neverBeganError says that the instance has failed a job before its first command.
type neverBeganError struct{ error }

func (e neverBeganError) Unwrap() error { return e.error }

// judge records how the instance of a slot has dealt with a job. It returns the build's error.
func (e *Executor) judge(ctx context.Context, s *slot, result connector.Result, err error) error {
	untouched := errors.Is(err, connector.ErrUndelivered)
	_, ended := errors.AsType[*connector.ServeError](err)
	failed := result.System && result.Status == connector.Failed && !result.TimedOut
	group, cause := e.provider.cfg.Group, err
	switch {
	case err != nil && !untouched && !ended:
		return e.box.explain(ctx, err)
	case err == nil && !failed:
		if !result.System { // else the step runner was ended
			group.worked(s)
		}
		return outcome(result)
	case failed && result.ServerFailed: // other instances would find the same
		return outcome(result)
	case e.box != nil: // its image may be the reason
		if err != nil {
			return e.box.explain(ctx, err)
		}
		return outcome(result)
	case failed:
		untouched, cause = result.NothingStarted, errors.New(result.Message)
	}
	moves := untouched && ctx.Err() == nil && e.mayLeave(s)()
	if !mux.IsLost(err) { // that is known to the group
		group.failed(s, cause, moves && (failed || ended)) // else its project may be too large for any instance
	}
	if moves {
		e.unbegun = neverBeganError{cause}
		return &BuildError{Reason: RunnerSystemFailure, Elsewhere: true, Err: cause}
	}
	return e.withReasons(cause)
}

// watchProbe makes job, of a slot's build, end the quarantine of its instance once its steps run well, if the build is
// the probe: it may run for hours. The caller calls stop when the job has ended.
func (e *Executor) watchProbe(s *slot, job *connector.Job) (stop func()) {
	group, onStep := e.provider.cfg.Group, job.OnStep
	if !group.isProbe(s) {
		return func() {}
	}
	var timer *time.Timer // one goroutine calls OnStep, and has ended when stop is called
	job.OnStep = func(event connector.StepEvent) {
		if timer == nil {
			timer = time.AfterFunc(proof, func() { group.worked(s) })
		}
		if onStep != nil {
			onStep(event)
		}
	}
	return func() {
		if timer != nil {
			timer.Stop()
		}
	}
}
