package manager

import (
	"context"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// fleet is the part of a manager that knows whether there are others: alone, or one of several whose VMs and builds
// are shared. A manager asks it for all that differs.
type fleet interface {
	// join takes out the drained VMs. When it returns, this manager has the VMs that it may use now.
	join(ctx context.Context) error
	// start resumes the builds that run, and answers other managers, once the queue is open.
	start(ctx context.Context) error
	// Leave gives the VMs to other managers when this one ends.
	Leave(ctx context.Context)
	// ID is that of this manager, empty if there are no others.
	ID() string

	vms
	requests
	builds
	tasks
	peers
}

// vms is a fleet's answers about VMs.
type vms interface {
	// Has reports whether this manager may resume a build on a VM.
	Has(vm string) bool
	// takes reports whether a VM with these labels takes builds of this manager, now or later.
	takes(labels map[string]string) bool
	// OwnerOf returns another manager if all VMs that fit are those of other managers, else "".
	OwnerOf(fits func(instance.Instance) bool) string
	// drained says that a VM was taken out.
	drained()
}

// requests is a fleet's answers about requests that the queue hands out.
type requests interface {
	// keptUntil returns when the queue may hand a request out again that was asked for, or confirmed, at a time. It is
	// zero if that does no harm.
	keptUntil(from time.Time) time.Time
	// isFresh is Request.Fresh for a request that was handed out for the n-th time.
	isFresh(r *state.Request, n uint64) bool
	// confirm notes that since that time the queues were told that these are not lost.
	confirm(told []delivered, since time.Time)
}

// delivered is something that a queue has handed out: a build or a pipeline.
type delivered interface {
	// counts notes that the queue does not hand it out again before that time.
	counts(until time.Time)
}

// builds is a fleet's answers about builds that another manager may have.
type builds interface {
	// takeOver loads the log of a build that is to begin, or to be resumed, and makes both this manager's.
	takeOver(ctx context.Context, r *state.Request, rec *state.Record, log *state.Log) error
	// isDamaged reports whether the log of a build without a record shows that the record is lost.
	isDamaged(log *state.Log) bool
	// endTaken ends the part of this manager in a build whose record another one has changed.
	endTaken(e *instance.Executor)
	// repeats reports whether a change of a running build that failed with err is made again.
	repeats(err error) bool
	// mayMerge reports whether a change of a record is repeated on the one that is kept now, which may be this manager's.
	mayMerge(r *state.Record) bool
	// ceased says that a build was left, and may be this manager's again.
	ceased()
	// cancelRecord cancels a build that this manager has not begun by its record. done is false if it is to be ended
	// here.
	cancelRecord(ctx context.Context, rec *state.Record) (done bool, err error)
	// awaitEnd waits for the result of a build that this manager does not have, after the end of its log.
	awaitEnd(ctx context.Context, id string) error
}

// tasks is a fleet's answers about the tasks of servers, which one manager at a time reports.
type tasks interface {
	// Term waits until this manager may have tasks. The context that it returns ends with ctx, and when another manager
	// may take them over. The caller calls stop.
	Term(ctx context.Context) (term context.Context, stop context.CancelFunc, err error)
	// Free reports whether this manager may take over the tasks that a manager has.
	Free(ctx context.Context, manager string) bool
	// awaitTasks waits until there may be tasks to be taken over. It returns an error when ctx ends.
	awaitTasks(ctx context.Context) error
}

// peers is a fleet's calls to the other managers.
type peers interface {
	// ask asks them all, and returns the answers that come in time.
	ask(ctx context.Context, q peerQuestion) []peerAnswer
	// TellCancel tells them that a build was canceled.
	TellCancel(ctx context.Context, id string) error
}

// fleetOf returns the fleet that the manager's configuration names.
func fleetOf(m *Manager) fleet {
	if m.cfg.NATS != nil {
		return newShared(m)
	}
	return alone{m}
}

// alone is the fleet of a manager that has all VMs, and whose state no other one uses.
type alone struct{ m *Manager }

func (f alone) join(ctx context.Context) error { return f.m.store.Persist(ctx, f.m.restoreDrains) }

func (f alone) start(ctx context.Context) error { return f.m.resume(ctx, maxHeld+maxStrangers) }

func (alone) Leave(context.Context) {}

func (alone) ID() string { return "" }

func (alone) Has(string) bool { return true }

// takes is true: a build without such a VM waits for a change of the inventory, or fails.
func (alone) takes(map[string]string) bool { return true }

func (alone) OwnerOf(func(instance.Instance) bool) string { return "" }

func (alone) drained() {}

func (alone) keptUntil(time.Time) time.Time { return time.Time{} }

func (f alone) isFresh(r *state.Request, n uint64) bool {
	return f.m.store.IsNew(r) && r.Seq > f.m.canceled && n == 1 && !r.IsPipelines() // these have a record before
}

func (alone) confirm([]delivered, time.Time) {}

func (alone) takeOver(ctx context.Context, r *state.Request, _ *state.Record, log *state.Log) error {
	if r.Fresh {
		return nil
	}
	return log.Load(ctx)
}

func (alone) isDamaged(log *state.Log) bool { return log.HasRun() }

// endTaken ends the step runner: the build was canceled, and it has no job.
func (f alone) endTaken(e *instance.Executor) { _ = e.Cleanup(f.m.life) }

func (alone) repeats(error) bool { return false }

func (alone) mayMerge(r *state.Record) bool { return r.IsKept() }

func (alone) ceased() {}

func (alone) cancelRecord(_ context.Context, rec *state.Record) (done bool, err error) {
	if rec.Phase == state.PhaseWaiting {
		return false, nil
	}
	return true, state.ErrTaken // by a manager before: this one has not resumed it yet
}

// awaitEnd does not wait: a build that this manager does not have has ended.
func (alone) awaitEnd(context.Context, string) error { return nil }

func (alone) Term(ctx context.Context) (context.Context, context.CancelFunc, error) {
	term, stop := context.WithCancel(ctx)
	return term, stop, nil
}

// Free is true: the manager has ended.
func (alone) Free(context.Context, string) bool { return true }

func (alone) awaitTasks(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (alone) ask(context.Context, peerQuestion) []peerAnswer { return nil }

func (alone) TellCancel(context.Context, string) error { return nil }
