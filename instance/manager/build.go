package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// errCanceled ends a build on request.
var errCanceled = errors.New("the build was canceled on request")

// build is a build that this manager has taken from the queue. One goroutine, Manager.run, owns it.
type build struct {
	state.Request
	asked *pb.SubmitRequest
	where where
	log   *state.Log
	done  chan struct{} // closed when it has ended or is left to another manager
	// traceErr is the failure to keep its trace, or the remarks in that. It is for Manager.run's goroutine.
	traceErr error
	// outputs are those of its job, if that asks for them. They are for the same goroutine.
	outputs *stepmuxv1.Outputs

	ctx    context.Context // its end cancels the build; it is not the manager's
	cancel context.CancelCauseFunc

	executor atomic.Pointer[instance.Executor] // of the latest attempt

	mu     sync.Mutex // guards the following; held while the record is written
	record state.Record
	msg    *state.Delivery // of the queue; nil if another manager had taken it, until it comes again
	left   bool            // to another manager
	taken  bool            // by another manager, as the record or the log says
	ending bool            // its outcome is known
}

// kept returns the record of the build.
func (b *build) kept() *state.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record
	return &r
}

// working tells the queue that the build is not lost, and reports whether it could.
func (b *build) working() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Otherwise the queue hands the request out again, which is noticed.
	return b.msg != nil && b.msg.InProgress()
}

// counts notes that the queue does not hand the request out again before that time.
func (b *build) counts(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.msg != nil && b.msg.Until.Before(until) {
		b.msg.Until = until
	}
}

// delivered returns the delivery of the build's request, nil if the queue has not handed it out to this manager.
func (b *build) delivered() *state.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.msg
}

// run runs a build to its end, or until it is left to another manager.
func (m *Manager) run(b *build) {
	defer close(b.done)
	for m.attempt(b, b.executor.Load()) {
	}
	b.log.Stop()
	b.giveBack()
}

// giveBack gives a build that is left to another manager back to the queue, unless another manager has it already.
func (b *build) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left && !b.taken && b.msg != nil {
		_ = b.msg.GiveBack(0) // else the queue hands it out again later
	}
}

// executorOf returns the executor of a build's next attempt.
func (m *Manager) executorOf(b *build) *instance.Executor {
	linger, id := m.cfg.Linger, b.attemptID()
	return m.cfg.Provider.Executor(instance.Build{
		ID: id, Log: b.log, LogState: b.log.State(), Linger: &linger, Secret: m.store.Secret(id),
		Labels: b.asked.GetLabels(), Place: b.where.place, Timeout: b.asked.GetJob().GetTimeout().AsDuration(),
		Since: earlier(b.kept().Started, time.Now()),
	})
}

// attempt is run, once. It reports whether the build was lost and is to run again.
func (m *Manager) attempt(b *build, e *instance.Executor) (again bool) {
	var err error
	known := b.log.Result()
	if known == nil {
		err = m.execute(b, e)
	}
	b.mu.Lock()
	b.taken = b.log.IsLost() || errors.Is(err, state.ErrTaken)
	b.left = b.left || b.taken || m.life.Err() != nil || errors.Is(err, instance.ErrElsewhere)
	left := b.left
	b.ending = !left
	b.mu.Unlock()
	if left {
		_ = e.Leave(m.life) // it goes on
		return false
	}
	if known == nil && b.isLost(err) {
		return m.again(b, e, err)
	}
	if known == nil {
		known = resultOf(err, b.kept().Canceled)
		m.noteFiles(b, known)
		known = m.keepOutputs(b, known) // before its end: then the next job asks for them
		if b.traceErr != nil {
			m.remark(b, b.log.State(), b.traceErr.Error())
		}
		if known.Reason != string(instance.RunnerSystemFailure) { // the log has all of the job's output
			// The manager may die before the clean-up, after which no process would know the outcome.
			m.keep(b, known)
			if b.kept().Phase != state.PhaseEnded {
				_ = e.Leave(m.life) // the next manager asks the step runner again
				return false
			}
		}
	}
	m.end(b, e, known, err)
	return false
}

// keepOutputs keeps the outputs of a build of a pipeline, and returns its result: a build whose outputs are too large
// for the store has failed.
func (m *Manager) keepOutputs(b *build, known *state.Result) *state.Result {
	size, most := proto.Size(b.outputs), m.store.MaxRequest
	switch {
	case b.outputs == nil || b.asked.GetPipeline() == nil:
	case size <= most:
		m.keepTrying("keep its outputs", b, func() error { return m.store.KeepOutputs(m.life, b.ID, b.outputs) })
	case known.Reason == "":
		failed := *known
		failed.Reason, failed.ExitCode = string(instance.ScriptFailure), 1
		failed.Message = fmt.Sprintf("the outputs of the job have %d bytes, at most %d can be kept: make them smaller, or "+
			"set max_payload of the NATS servers to 8MB", size, most)
		return &failed
	}
	return known
}

// maxAttempts is how often a build that was lost runs again.
const maxAttempts = 2

// attemptID returns the ID of the build on its VM: an attempt that was lost may still be there.
func (b *build) attemptID() string {
	if n := b.kept().Attempt; n > 0 {
		return fmt.Sprintf("%s.%d", b.ID, n)
	}
	return b.ID
}

// isLost reports whether err says that the VM of a build, or the way to it, has failed while its job may have run, and
// that the build is to run again then.
func (b *build) isLost(err error) bool {
	failed, ok := errors.AsType[*instance.BuildError](err)
	_, collecting := errors.AsType[*files.CollectError](err) // the job has ended
	r := b.kept()
	return ok && failed.Reason == instance.RunnerSystemFailure && !collecting && b.asked.GetRetryLost() &&
		r.Phase == state.PhaseRunning && r.Attempt < maxAttempts && !r.Canceled
}

// again makes a build that was lost because of err ready for its next attempt, and reports whether it has done so.
func (m *Manager) again(b *build, e *instance.Executor, err error) bool {
	_ = e.Cleanup(m.life) // the rest ends by itself, after its linger
	m.cfg.Logger.Warn("the build is lost and runs again", "build", b.ID, "instance", e.Instance(), "error", err)
	m.keepTrying("keep the next attempt", b, func() error {
		return m.change(b, func(r *state.Record) {
			r.Phase, r.Instance, r.Socket, r.Started, r.Connect = state.PhaseWaiting, "", "", time.Time{}, 0
			r.Attempt++
		})
	})
	m.remark(b, buildlog.State{}, fmt.Sprintf("the build is lost and runs again: %v", err))
	e = m.executorOf(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending = false
	b.executor.Store(e)
	return b.record.Phase == state.PhaseWaiting && m.takes.Err() == nil
}

// remark adds a line to the log of a build whose step runner adds nothing. after is the state of the log then.
func (m *Manager) remark(b *build, after buildlog.State, text string) {
	text = "step runner: " + text + "\n"
	if b.log.State().Open {
		text = "\n" + text
	}
	after.Open = false
	m.keepTrying("write the log", b, func() error {
		_, err := b.log.WriteState([]byte(text), after)
		return err
	})
}

// execute runs the job of a build, from the start or from where another manager has left it.
func (m *Manager) execute(b *build, e *instance.Executor) error {
	ctx := b.ctx
	if was := b.kept(); was.Phase == state.PhaseRunning {
		m.cfg.Logger.Info("build is resumed", "build", b.ID, "instance", was.Instance)
		if err := e.Resume(context.WithoutCancel(ctx), was.Instance, was.Socket); err != nil {
			return err
		}
	} else {
		if err := e.Prepare(ctx); err != nil {
			return err
		}
		if err := m.connect(b, e); err != nil {
			return err
		}
	}
	for {
		err := m.deliver(b, e)
		if failed, ok := errors.AsType[*instance.BuildError](err); !ok || !failed.Elsewhere {
			return err
		}
		// Nothing of it has run: it begins on another VM, by another manager if this one dies now.
		err = m.changeRunning(b, func(r *state.Record) {
			r.Phase, r.Instance, r.Socket, r.Started, r.Connect = state.PhaseWaiting, "", "", time.Time{}, 0
		})
		if err == nil {
			err = m.connect(b, e)
		}
		if err != nil {
			return err
		}
	}
}

// connect starts the step runner of a build, and notes where it is.
func (m *Manager) connect(b *build, e *instance.Executor) error {
	if _, err := e.Connect(b.ctx); err != nil {
		return err
	}
	started := e.Started()
	connect := time.Since(started)
	vm, socket := e.Place()
	err := m.changeRunning(b, func(r *state.Record) {
		r.Phase, r.Instance, r.Socket, r.Started, r.Connect = state.PhaseRunning, vm, socket, started, connect
	})
	if errors.Is(err, state.ErrTaken) {
		m.fleet.endTaken(e)
	}
	return err
}

// changeRunning changes the record of a build that runs. With other managers that is repeated while the store is away.
func (m *Manager) changeRunning(b *build, edit func(*state.Record)) error {
	err := m.change(b, edit)
	for err != nil && m.fleet.repeats(err) && b.ctx.Err() == nil && !b.isLeft() {
		m.cfg.Logger.Warn("cannot keep the build", "build", b.ID, "error", err)
		_ = pause.For(m.life, time.Second)
		err = m.change(b, edit)
	}
	return err
}

// deliver runs the job of a build whose step runner has started.
func (m *Manager) deliver(b *build, e *instance.Executor) error {
	ctx := b.ctx
	if limit := b.asked.GetJob().GetTimeout().AsDuration(); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(
			ctx, earlier(b.kept().Started, time.Now()).Add(limit), fmt.Errorf("the build took longer than %v", limit))
		defer cancel()
	}
	return e.Execute(ctx, m.work(b))
}

// earlier returns the first of two times. The clock may have been set back since a build got its slot.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// work returns the build's job. It is the same each time: a step runner that has it already takes it for one.
func (m *Manager) work(b *build) connector.Job {
	job := connector.Job{
		Job: (&stepmuxv1.Job{Env: map[string]string{"CI": "true", "CI_JOB_ID": b.ID}}).With(b.asked.GetJob()).
			With(&stepmuxv1.Job{Steps: b.where.steps}),
		Artifacts: m.artifacts(b.ID, b.asked), Caches: m.caches(b), Services: m.servicesOf(b),
	}
	if archives := m.archives(b.asked); len(archives) > 0 {
		job.Project, job.Overlays = archives[0], archives[1:]
	}
	remarks := b.asked.GetPipeline().GetRemarks()
	if b.asked.GetTrace() || remarks {
		kept := &keptTrace{m: m, id: b.ID, whole: b.asked.GetTrace(), remarks: remarks}
		job.Trace, job.OnTrace = kept, func(err error) { b.traceErr = kept.end(err) }
	}
	if b.asked.GetJob().GetOutputs() {
		job.OnOutputs = func(values map[string]string, masked []string) {
			b.outputs = &stepmuxv1.Outputs{}
			for _, name := range slices.Sorted(maps.Keys(values)) {
				b.outputs.Given = append(b.outputs.Given, &stepmuxv1.Outputs_Output{Name: name, Value: values[name]})
			}
			for _, name := range masked {
				b.outputs.Given = append(b.outputs.Given, &stepmuxv1.Outputs_Output{Name: name, Masked: true})
			}
		}
	}
	return job
}

// change changes the record of a build.
func (m *Manager) change(b *build, edit func(*state.Record)) error {
	ctx, cancel := context.WithTimeout(m.life, m.store.Timeout)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record
	edit(&r)
	r.Manager = m.fleet.ID()
	err := m.store.Put(ctx, &r)
	if errors.Is(err, state.ErrTaken) && m.fleet.mayMerge(&r) {
		err = m.merge(ctx, b, &r, edit)
	}
	if err != nil {
		return err
	}
	b.record = r
	return nil
}

// merge repeats a change of a build's record after another write: either a write of this manager whose answer was lost,
// or the mark of another manager that the build is canceled. b.mu is held.
func (m *Manager) merge(ctx context.Context, b *build, r *state.Record, edit func(*state.Record)) error {
	now, err := m.store.Record(ctx, b.ID)
	switch {
	case err != nil:
		return err
	case now == nil || now.Manager != m.fleet.ID():
		return state.ErrTaken
	case now.Phase == state.PhaseEnded && r.Phase != state.PhaseEnded:
		return state.ErrTaken
	case now.Canceled && !b.record.Canceled:
		b.cancel(errCanceled)
	}
	*r = *now
	edit(r)
	return m.store.Put(ctx, r)
}

// waits reports whether the build has no slot.
func (b *build) waits() bool { return b.executor.Load().Instance() == "" }

// isLeft reports whether the build is left to another manager.
func (b *build) isLeft() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

// resultOf returns the outcome of a build by its error.
func resultOf(err error, canceled bool) *state.Result {
	if err == nil {
		return &state.Result{}
	}
	failed, ok := errors.AsType[*instance.BuildError](err)
	if !ok {
		failed = &instance.BuildError{Reason: instance.RunnerSystemFailure, Err: err}
	}
	r := &state.Result{Reason: string(failed.Reason), ExitCode: failed.ExitCode, Message: failed.Err.Error()}
	if canceled && failed.Reason != instance.ScriptFailure {
		r.Reason, r.Message, r.ExitCode = string(instance.JobCanceled), errCanceled.Error(), 0
	}
	return r
}

// end ends the rest of a build on its VM, stores its outcome, and takes its request out of the queue.
func (m *Manager) end(b *build, e *instance.Executor, known *state.Result, err error) {
	cleanup := e.Cleanup(m.life) // it is bounded
	ended := *known
	ended.Left = e.Left()
	if cleanup != nil {
		m.cfg.Logger.Warn("the build's end on the VM failed", "build", b.ID, "instance", e.Instance(), "error", cleanup)
	}
	if b.kept().Phase != state.PhaseEnded || len(ended.Left) > 0 {
		m.keep(b, &ended)
	}
	if b.kept().Phase != state.PhaseEnded {
		return // the next manager gets its request again
	}
	m.store.LeaveQueue(&b.Request, b.delivered())
	if m.cfg.OnEnd != nil {
		report := batch.Report{
			Build: b.ID, Instance: e.Instance(), Route: e.Choice(), Isolation: e.Isolation(), Usage: e.Usage(),
			Cleanup: cleanup, Left: ended.Left,
		}
		if ended.Reason != "" {
			report.Err = &instance.BuildError{
				Reason: instance.FailureReason(ended.Reason), ExitCode: ended.ExitCode,
				Err: cmp.Or(err, errors.New(ended.Message)),
			}
		}
		if !e.Started().IsZero() {
			r := b.kept()
			report.Duration, report.Waited = time.Since(r.Started), max(r.Started.Sub(b.Submitted), 0) // clocks differ
			report.Connect, report.FirstOutput = r.Connect, r.FirstOutput
		}
		m.cfg.OnEnd(report)
	}
}

// keep stores the result of a build. All output is in the log already.
func (m *Manager) keep(b *build, r *state.Result) {
	ended := time.Now()
	m.keepTrying("keep its result", b, func() error {
		return m.change(b, func(rec *state.Record) {
			rec.Phase, rec.Ended, rec.Result = state.PhaseEnded, ended, r
			rec.FirstOutput, rec.LogBytes = b.log.FirstAfter(rec.Started), b.log.Length()
		})
	})
	if b.kept().Phase == state.PhaseEnded { // else its followers would take it for one that succeeded
		m.keepTrying("end the log", b, func() error { return b.log.End(r) })
	}
}

// keepTrying repeats an operation until it succeeds or the store is lost; in that case the next manager does it.
func (m *Manager) keepTrying(what string, b *build, do func() error) {
	for {
		err := do()
		if err == nil || m.life.Err() != nil || errors.Is(err, state.ErrTaken) || b.isLeft() {
			return
		}
		m.cfg.Logger.Error("cannot "+what, "build", b.ID, "error", err)
		_ = pause.For(m.life, time.Second)
	}
}
