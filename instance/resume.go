package instance

import (
	"context"
	"errors"
	"time"
)

// Place returns where a build is that has its step runner: the ID of the instance, and the socket there, for a build in
// a container or a pod with that before it. Another process needs both, with the build's ID and Secret, for Resume.
// Keep them before Execute is called: from then on the build may have run.
func (e *Executor) Place() (instance, socket string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.connector == nil {
		return "", ""
	}
	socket = e.connector.Socket()
	if at := e.place(); at != nil && socket != "" {
		socket = at.Place() + placeSocket + socket
	}
	return e.slot.member.ID, socket
}

// placeSocket stands between a container or a pod and a socket in it.
const placeSocket = ":"

// place returns the build's container or pod, nil without one. e.mu is held.
func (e *Executor) place() place {
	if e.box == nil {
		return nil
	}
	return e.box.running()
}

// Resume takes the place of Prepare and Connect for a build that another process has begun, and that lingers. It takes
// a slot on the build's instance even if none is free, attaches to the step runner there, and starts nothing. A manager
// that was attached is then refused by the step runner: the later one wins. Execute with the same job goes on with the
// log at Build.LogState; a job that was not delivered before is delivered then.
//
// It waits for an instance that cannot be reached for as long as the build lingers. It fails if the instance is not in
// the group, and if the step runner is gone: such a build is lost, and must not be started again, since it may have
// run.
func (e *Executor) Resume(ctx context.Context, instance, socket string) (err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	if e.Instance() != "" {
		return errors.New("instance: Resume after Prepare")
	}
	s, err := e.provider.cfg.Group.occupy(e.build.ID, instance)
	if err != nil {
		return err
	}
	if !e.keep(func() { e.slot, e.started, e.resumed = s, time.Now(), true }) {
		s.giveBack()
		return ErrCleanedUp
	}
	if e.build.Placed != nil {
		e.build.Placed(s.member.ID)
	}
	if s.member.Cluster == nil {
		lease, err := e.leaseToStart(ctx, s)
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

// Occupy takes the place of Prepare for a build that another process had begun, without a step runner: it takes a slot
// on that instance even if all are taken, and does not connect. Client then connects when it needs to.
func (e *Executor) Occupy(instance string) (err error) {
	ctx, finish := bind(context.Background(), e.life, ErrCleanedUp)
	defer finish(&err)
	if e.Instance() != "" {
		return errors.New("instance: Occupy after Prepare")
	}
	s, err := e.provider.cfg.Group.occupy(e.build.ID, instance)
	if err != nil {
		return err
	}
	if !e.keep(func() { e.slot, e.started, e.resumed = s, time.Now(), true }) {
		s.giveBack()
		return ErrCleanedUp
	}
	return ctx.Err()
}

// Leave is Cleanup for a build that lingers and is to go on in another process: it ends nothing on the instance.
// Execute returns with an error that says nothing of the job. If the step runner does not listen yet, as in a Connect
// that has not returned, its start is given up. Once Leave has returned the log has all that its Writer was given.
func (e *Executor) Leave(ctx context.Context) error {
	e.mu.Lock()
	e.leaves = true
	e.mu.Unlock()
	return e.Cleanup(ctx)
}

// occupy takes a slot on an instance, although it may be full, or take no new builds.
func (g *Group) occupy(build, id string) (*slot, error) {
	g.mu.Lock()
	defer g.unlock()
	m := g.machineLocked(id)
	switch {
	case m == nil:
		return nil, unknown(id)
	case m.elsewhere:
		return nil, ErrElsewhere
	}
	return m.take(g, build, time.Now()), nil
}
