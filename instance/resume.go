package instance

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Place returns where the build's step runner is: the ID of the instance and the socket there, preceded by the
// container or pod if there is one. Another process needs both for Resume, with the build's ID and Secret. Store them
// before you call Execute: from then on the build may have run.
func (e *Executor) Place() (instance, socket string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return "", ""
	}
	socket = e.connector.Socket()
	if at := e.box.running(); at != nil && socket != "" {
		socket = at.At() + placeSocket + socket
	}
	return e.slot.placement.ID, socket
}

// placeSocket separates a container or pod from a socket in it.
const placeSocket = ":"

// Resume replaces Prepare and Connect for a lingering build that another process has begun. It takes a slot on the
// build's instance even if none is free, and attaches to the step runner there; it starts nothing. A manager that was
// attached is then refused by the step runner: the later one wins. Execute with the same job continues the log at
// Build.LogState, and delivers the job if it was not delivered before.
//
// If the instance cannot be reached, Resume waits for as long as the build lingers. It fails if the instance is not
// in the group or the step runner is gone. Such a build is lost; do not start it again, as it may have run.
func (e *Executor) Resume(ctx context.Context, instance, socket string) (err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	if socket == "" {
		return errors.New("instance: Resume of a build that has no socket: it had no step runner, and can be started again")
	}
	s, err := e.occupy(instance)
	if err != nil {
		return err
	}
	if e.build.Placed != nil {
		e.build.Placed(s.placement.ID)
	}
	if s.placement.Cluster == nil {
		lease, err := e.leaseToStart(ctx, s, stay)
		if err != nil {
			return err
		}
		if !e.keep(func() { e.lease = lease }) {
			lease.Release()
			return ErrCleanedUp
		}
	}
	_, err = e.connect(ctx, socket)
	return err
}

// Occupy replaces Prepare for a build that another process had begun, without a step runner. It takes a slot on that
// instance even if all are taken, and does not connect. Client connects later, when it is called.
func (e *Executor) Occupy(instance string) (err error) {
	ctx, finish := bind(context.Background(), e.life, ErrCleanedUp)
	defer finish(&err)
	_, err = e.occupy(instance)
	return cmp.Or(err, ctx.Err())
}

// occupy takes the slot of a build that another process has begun.
func (e *Executor) occupy(instance string) (*slot, error) {
	if e.Instance() != "" {
		return nil, errors.New("instance: Resume or Occupy after Prepare")
	}
	s, err := e.provider.cfg.Group.occupy(e.build.ID, instance, e.build.Since)
	if err != nil {
		return nil, err
	}
	if !e.keep(func() { e.slot, e.started, e.resumed = s, time.Now(), true }) {
		s.giveBack()
		return nil, ErrCleanedUp
	}
	return s, nil
}

// Leave is Cleanup for a lingering build that is to continue in another process: it ends nothing on the instance.
// Execute returns with an error that does not describe the job. If the step runner does not listen yet, because
// Connect has not returned, its start is given up. When Leave returns, the log has everything that its Writer was
// given.
func (e *Executor) Leave(ctx context.Context) error {
	e.mu.Lock()
	e.leaves = true
	e.mu.Unlock()
	return e.Cleanup(ctx)
}

// occupy takes a slot on an instance, even if it is full or takes no new builds.
func (g *Group) occupy(build, id string, since time.Time) (*slot, error) {
	g.mu.Lock()
	defer g.unlock()
	e := g.byID[id]
	switch {
	case e == nil:
		return nil, unknown(id)
	case e.elsewhere:
		return nil, ErrElsewhere
	}
	if since.IsZero() {
		since = time.Now()
	}
	return e.take(g, &waiter{build: build}, since), nil
}
