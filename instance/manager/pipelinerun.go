package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/rmtree"
)

const (
	// maxCarried bounds the pipelines that a manager carries out at a time. Those that are blocked do not count.
	maxCarried = 200
	// maxJobsAtOnce bounds the builds of one pipeline that are queued or run.
	maxJobsAtOnce = 1000
	// maxFailures bounds how often it is tried again to carry a pipeline out.
	maxFailures = 10
	// exitSystem is the exit code of a pipeline that could not be carried out.
	exitSystem = 3
	// pipelinesDir is the directory for files of pipelines that are carried out, in the state directory.
	pipelinesDir = "pipelines"
)

var (
	// errPipelineLost ends the work on a pipeline that another manager carries out now.
	errPipelineLost = errors.New("another manager carries the pipeline out")
	// errPipelineCanceled ends the builds of a pipeline that was cancelled, and errRedundant those that a newer one ends.
	errPipelineCanceled = errors.New("the pipeline was canceled on request")
	errRedundant        = errors.New("a newer pipeline made this one redundant")
	// errRequest is wrapped by the error of a request that cannot be read.
	errRequest = errors.New("the request of the pipeline cannot be read")
)

// PipelineRun is a pipeline that this manager carries out. Planned.Carry gets its builds from it. It is safe for
// concurrent use. One goroutine, Manager.carry, owns it.
type PipelineRun struct {
	m     *Manager
	id    string
	call  uint64
	asked *pb.SubmitPipelineRequest
	life  context.Context // ends when another manager carries it out, and with the manager
	lose  context.CancelCauseFunc
	dirty chan struct{} // has an element if the jobs that are shown have changed

	keeping sync.Mutex // held, before mu, while the jobs are kept: those of the end come last

	turn *turn // of the pipeline in its group; nil without one

	// These end when the record says so, and with life: Canceled, Killed and Redundant.
	canceled, killed, redundant ending

	again bool // another call has come; the manager's mu guards it

	mu     sync.Mutex // guards the following
	rec    *state.Pipeline
	msg    *state.Delivery         // nil before the queue has handed the call out
	stop   context.CancelCauseFunc // cancels the builds of Carry; nil without one
	begun  []string                // jobs with a build when Carry began; nil if it is the first one
	play   func(job string)        // of Carry; may be nil
	queued map[string]bool         // builds whose requests were in the queue when Carry began
	shown  *pb.Pipeline
	jobs   map[string]*pb.PipelineJob // of shown, by name
}

// ending is a context with its end.
type ending struct {
	context.Context
	end context.CancelCauseFunc
}

func newEnding(life context.Context) (e ending) {
	e.Context, e.end = context.WithCancelCause(life)
	return e
}

// pipelines returns the pipelines that this manager carries out.
func (m *Manager) pipelines() []*PipelineRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.carried))
}

// takePipelines takes pipelines for which somebody calls, until no more are to be taken.
func (m *Manager) takePipelines(calls *state.Queue) {
	_ = rmtree.Remove(filepath.Join(m.cfg.Dir, pipelinesDir)) // of a manager before
	if err := m.callAgain(); err != nil && m.takes.Err() == nil {
		m.cfg.Logger.Error("cannot look for pipelines that nobody calls for", "error", err)
	}
	for m.takes.Err() == nil {
		for len(m.pipelines()) >= maxCarried && pause.For(m.takes, time.Second/10) == nil {
		}
		d, err := m.next(calls)
		if err == nil {
			err = m.acceptCall(d)
		}
		if err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Error("cannot take a pipeline", "error", err)
			_ = pause.For(m.takes, time.Second)
			calls.Mend(m.takes, err)
		}
	}
}

// callAgain calls for all pipelines that are queued: a manager may have ended after it had kept that, and before its
// call. A call too many finds the pipeline with another call or at rest, and is taken out.
func (m *Manager) callAgain() error {
	return m.store.Persist(m.takes, func(ctx context.Context) error {
		all, err := m.store.AllPipelines(ctx)
		for _, p := range all {
			if err == nil && p.Phase == state.PipelineQueued && len(p.Rounds) == 0 {
				err = m.endOlder(ctx, p)
			}
			if err == nil && p.Phase == state.PipelineQueued {
				_, err = m.store.Call(ctx, p.ID, "")
			}
		}
		return err
	})
}

// acceptCall begins to carry a pipeline out, or to go on with it.
func (m *Manager) acceptCall(d *state.Delivery) error {
	id, call, err := d.Called()
	if err != nil {
		return err
	}
	if m.isOthers(d, id) {
		return m.pass(d)
	}
	return m.takeCall(id, call, d)
}

// takeCall is acceptCall for a call that may not have been handed out yet: then d is nil.
func (m *Manager) takeCall(id string, call uint64, d *state.Delivery) error {
	m.mu.Lock()
	p := m.carried[id]
	if p != nil && p.call != call {
		p.again = true
	}
	m.mu.Unlock()
	if p != nil && p.call == call { // it came again
		p.mu.Lock()
		defer p.mu.Unlock()
		if d != nil {
			p.msg = d
		}
		return nil
	}
	if p != nil { // it sees each change of the record
		return ackCall(d)
	}
	if d.IsLate() {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.takes, acceptTimeout)
	defer cancel()
	rec, err := m.store.Pipeline(ctx, id)
	if err != nil {
		return err
	}
	if rec == nil || rec.AtRest() || rec.Phase == state.PipelineRunning && rec.Call != call {
		return ackCall(d) // it is not kept any more, has nothing to do, or the manager with that call sees each change
	}
	first := rec.Started.IsZero() && len(rec.Rounds) == 0
	rec.Phase, rec.Call, rec.Manager = state.PipelineRunning, call, m.fleet.ID()
	if rec.Started.IsZero() {
		rec.Started = time.Now()
	}
	err = m.store.PutPipeline(ctx, rec)
	if errors.Is(err, state.ErrTaken) {
		if d == nil {
			return nil // another manager carries it out
		}
		return m.pass(d)
	}
	if err != nil {
		return err
	}
	p = &PipelineRun{m: m, id: id, call: call, rec: rec, msg: d, dirty: make(chan struct{}, 1)}
	p.life, p.lose = context.WithCancelCause(m.takes)
	p.canceled, p.killed, p.redundant = newEnding(p.life), newEnding(p.life), newEnding(p.life)
	p.endLocked(rec) // nobody else has it yet
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.takes.Err() != nil {
		p.lose(nil)
		return context.Cause(m.takes)
	}
	m.carried[id] = p
	m.wg.Go(func() { m.carry(p, first) }) //nolint:contextcheck // its life is the manager's
	return nil
}

// ackCall takes a call out of the queue, if that has handed it out.
func ackCall(d *state.Delivery) error {
	if d == nil {
		return nil
	}
	return d.Ack()
}

// carry carries a pipeline out until it does not go on by itself. first says that no job of it has begun.
func (m *Manager) carry(p *PipelineRun, first bool) {
	var watching sync.WaitGroup
	watching.Go(p.watch)
	watching.Go(p.show)
	for done, failures := false, 0; !done && p.life.Err() == nil; {
		played, canceled := p.played(), p.Canceled()
		end, err := p.carryOnce(first)
		switch {
		case err != nil:
		case p.played() > played && !p.Canceled():
			first = false
			continue // jobs that were skipped for want of a manual job may run now; others are not run again
		case !first && p.Canceled() && !canceled:
			continue // the end may have come before it was known again which jobs had succeeded
		}
		first = false
		if err != nil && !errors.Is(err, errRequest) && failures < maxFailures { // as without room on the disk
			failures++
			m.cfg.Logger.Error("cannot carry a pipeline out", "pipeline", p.id, "error", err)
			_ = pause.For(p.life, time.Second)
			continue
		}
		done = p.life.Err() == nil && p.rest(end, err)
	}
	if p.life.Err() != nil && !errors.Is(context.Cause(p.life), errPipelineLost) {
		p.giveBack()
	}
	if p.turn != nil && p.life.Err() == nil {
		_ = p.turn.leave(state.Done) // else others find that the pipeline is at rest
	}
	p.lose(nil)
	watching.Wait()
	m.mu.Lock()
	delete(m.carried, p.id)
	again := p.again
	m.mu.Unlock()
	if again {
		if err := m.callQueued(p.id); err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Error("cannot call for a pipeline again", "pipeline", p.id, "error", err)
		}
	}
}

// callQueued calls for a pipeline again that was queued when it was no longer carried out, but had not left yet: the
// call of that time was taken for one about a change that is seen.
func (m *Manager) callQueued(id string) error {
	return m.store.Persist(m.takes, func(ctx context.Context) error {
		rec, err := m.store.Pipeline(ctx, id)
		if err == nil && rec != nil && rec.Phase == state.PipelineQueued {
			_, err = m.store.Call(ctx, id, "")
		}
		return err
	})
}

// carryOnce carries the pipeline out, from the records of its builds. first says that there are none.
func (p *PipelineRun) carryOnce(first bool) (*pb.Pipeline, error) {
	ctx, stop := context.WithCancelCause(p.life)
	defer stop(nil)
	if p.asked == nil {
		err := p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
			p.asked, err = p.m.store.PipelineRequest(ctx, p.id)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	plan, err := p.m.cfg.Pipelines.Read(p.asked)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRequest, err)
	}
	shown, open, err := p.showAgain(ctx, plan)
	if err != nil {
		return nil, err
	}
	var queued map[string]bool
	if open { // without a look, a build may be queued twice
		err = p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
			queued, err = p.m.store.QueuedOf(ctx, p.id)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	if !first {
		if err := p.findBegun(ctx); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	p.stop, p.play, p.queued, p.shown = stop, nil, queued, shown // from here on, a cancel ends ctx
	p.jobs = make(map[string]*pb.PipelineJob, len(shown.GetJobs()))
	for _, j := range shown.GetJobs() {
		p.jobs[j.GetName()] = j
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop, p.play = nil, nil
	}()
	end, err := plan.Carry(ctx, p.life, p)
	if err == nil && p.life.Err() == nil {
		p.cancelRest()
	}
	return end, err
}

// cancelRest cancels builds of jobs for which Carry has not waited, as those of a matrix of which another one had
// failed before.
func (p *PipelineRun) cancelRest() {
	p.mu.Lock()
	var rest []string
	for _, j := range p.jobs {
		if j.GetBuild() != "" && j.GetFinished() == nil {
			rest = append(rest, j.GetBuild())
		}
	}
	p.mu.Unlock()
	for _, build := range rest {
		_ = p.cancelBuild(build) // it fails at the end of the manager only
	}
}

// rest keeps how the pipeline stands, and takes its call out of the queue. It returns false if the record was changed
// since: then there is more to do.
func (p *PipelineRun) rest(end *pb.Pipeline, failed error) (done bool) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if end == nil {
		end = p.shown
		if end == nil {
			end = &pb.Pipeline{}
		}
		end.Phase, end.Status, end.ExitCode = pb.Pipeline_ended, "failure", exitSystem
	}
	for _, j := range end.GetJobs() { // their builds are known here only
		if was := p.jobs[j.GetName()]; was.GetBuild() != "" {
			j.Build, j.Started, j.Finished, j.Remarks = was.GetBuild(), was.GetStarted(), was.GetFinished(), was.GetRemarks()
		}
	}
	if p.shown != nil {
		end.Notes = p.shown.GetNotes()
	}
	r := p.copyLocked()
	r.Phase, r.Status, r.ExitCode, r.Ended = end.GetPhase().String(), end.GetStatus(), int(end.GetExitCode()), time.Now()
	r.Call, r.Manager = 0, ""
	if len(end.GetJobs()) > 0 {
		r.Counts = countsOf(end)
	}
	if failed != nil {
		r.Error = failed.Error()
	}
	if r.Phase == state.PipelineBlocked {
		r.Status = ""
	}
	p.shown, p.jobs = end, nil // nothing shows the jobs of before any more
	for p.life.Err() == nil {
		err := p.keepRestLocked(end, r)
		switch {
		case errors.Is(err, state.ErrTaken):
			return !p.reloadLocked()
		case err == nil:
			p.rec = r
			if !p.msg.IsLate() { // else it comes again, and finds the pipeline at rest
				_ = ackCall(p.msg)
			}
			return true
		}
		p.m.cfg.Logger.Error("cannot keep how a pipeline stands", "pipeline", p.id, "error", err)
		_ = pause.For(p.life, time.Second)
	}
	return false
}

// keepRestLocked keeps the jobs of a pipeline, and then its record. p.mu is held.
func (p *PipelineRun) keepRestLocked(end *pb.Pipeline, r *state.Pipeline) error {
	ctx, cancel := context.WithTimeout(p.life, p.m.store.Timeout)
	defer cancel()
	if len(end.GetJobs()) > 0 {
		if err := p.m.store.PutJobs(ctx, p.id, end); err != nil {
			return err
		}
	}
	return p.m.store.PutPipeline(ctx, r)
}

// copyLocked returns a copy of the record. p.mu is held.
func (p *PipelineRun) copyLocked() *state.Pipeline {
	r := *p.rec
	r.Played, r.Rounds, r.Due = slices.Clone(r.Played), maps.Clone(r.Rounds), maps.Clone(r.Due)
	return &r
}

// reloadLocked reads the record again, which another process has changed, and reports whether this manager still has
// the pipeline. p.mu is held.
func (p *PipelineRun) reloadLocked() bool {
	var now *state.Pipeline
	err := p.m.store.Persist(p.life, func(ctx context.Context) (err error) {
		now, err = p.m.store.Pipeline(ctx, p.id)
		return err
	})
	if err != nil {
		p.lose(err) // the queue hands the call out again
		return false
	}
	return p.absorbLocked(now)
}

// absorbLocked takes over the changes of others. p.mu is held.
func (p *PipelineRun) absorbLocked(now *state.Pipeline) bool {
	if now == nil || now.Call != p.call || now.Manager != p.m.fleet.ID() {
		p.lose(errPipelineLost)
		return false
	}
	if !now.After(p.rec) {
		return true
	}
	played := now.Played[min(len(p.rec.Played), len(now.Played)):]
	before := p.rec
	p.rec = now
	if p.play != nil {
		for _, job := range played {
			p.play(job)
		}
	}
	p.endLocked(before)
	return true
}

// endLocked ends what a record ends that was another one before. p.mu is held.
func (p *PipelineRun) endLocked(before *state.Pipeline) {
	if p.rec.Canceled && !before.Canceled && p.stop != nil {
		p.stop(errPipelineCanceled)
	}
	if p.rec.Canceled {
		p.canceled.end(errPipelineCanceled)
	}
	if p.rec.Killed {
		p.killed.end(errPipelineCanceled)
	}
	if p.rec.Redundant {
		p.redundant.end(errRedundant)
	}
}

// watch takes over the changes of others, until the work ends.
func (p *PipelineRun) watch() {
	err := p.m.store.WatchPipeline(p.life, p.id, func(now *state.Pipeline, _ *pb.Pipeline) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return now != nil && !now.After(p.rec) || p.absorbLocked(now)
	})
	if err != nil && p.life.Err() == nil {
		p.lose(err)
	}
}

// change changes the record. edit may be called again.
func (p *PipelineRun) change(edit func(*state.Pipeline)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.life.Err() == nil {
		r := p.copyLocked()
		edit(r)
		err := p.m.store.Persist(p.life, func(ctx context.Context) error { return p.m.store.PutPipeline(ctx, r) })
		if errors.Is(err, state.ErrTaken) && p.reloadLocked() {
			continue
		}
		if err == nil {
			before := p.rec
			p.rec = r
			p.endLocked(before)
		}
		return err
	}
	return context.Cause(p.life)
}

// findBegun finds the jobs that have begun.
func (p *PipelineRun) findBegun(ctx context.Context) error {
	var builds []*state.Record
	err := p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
		builds, err = p.m.store.BuildsOf(ctx, p.id)
		return err
	})
	if err != nil {
		return err
	}
	begun := []string{}
	for _, b := range builds {
		if state.IsOfRound(b.ID, p.id, b.Job, p.round(b.Job)) {
			begun = append(begun, b.Job)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = begun
	return nil
}

// working tells the queue that the pipeline is not lost, and reports whether it could.
func (p *PipelineRun) working() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.msg != nil && p.msg.InProgress()
}

// giveBack gives the call back to the queue, for another manager.
func (p *PipelineRun) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.msg != nil {
		_ = p.msg.GiveBack(0) // else the queue hands it out again later
	}
}

// counts implements delivered.
func (p *PipelineRun) counts(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.msg != nil && p.msg.Until.Before(until) {
		p.msg.Until = until
	}
}

// played returns how many manual jobs were started.
func (p *PipelineRun) played() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.rec.Played)
}
