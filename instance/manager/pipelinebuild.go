package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/archive"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// PipelineAttempt is an attempt of a job of a pipeline.
type PipelineAttempt struct {
	// Job is the name of the job, and Number counts its attempts from 1.
	Job    string
	Number int
	// Request returns the request for its build. It is called if the build is queued, which may be again. The project,
	// labels and options of all jobs are added to it.
	Request func(context.Context) (*pb.SubmitRequest, error)
	// Started is called when the job may run. May be nil.
	Started func()
	// Keeps says that the job goes on when the pipeline is cancelled, and Interruptible that a newer pipeline may end it.
	Keeps, Interruptible bool
}

// Build queues the build of an attempt, unless an earlier manager has done so, and waits for its end. Its result is nil
// if it did not begin, because it was to end before. When ctx ends while this manager carries the pipeline out, the
// build is canceled; otherwise it goes on.
func (p *PipelineRun) Build(ctx context.Context, a PipelineAttempt) (id string, result *pb.Result, err error) {
	id = state.PipelineBuildID(p.id, a.Job, p.round(a.Job), a.Number)
	ctx, free := p.bound(ctx, a)
	defer free()
	rec, err := p.record(ctx, id, a) //nolint:contextcheck // it looks also when ctx has ended
	if err != nil || rec == nil {
		return id, nil, err
	}
	p.showBuild(a.Job, a.Number, rec)
	if rec.Phase != state.PhaseEnded && ctx.Err() == nil && !p.isQueued(id) {
		if err := p.push(ctx, id, a); err != nil && (ctx.Err() == nil || p.life.Err() != nil) {
			return id, nil, err
		}
	}
	if rec.Phase != state.PhaseEnded {
		if rec.Phase == state.PhaseWaiting {
			p.Waits(a.Job, "waits for a slot")
		}
		if rec, err = p.await(ctx, id, a); err != nil {
			return id, nil, err
		}
		p.showBuild(a.Job, a.Number, rec)
	}
	return id, buildOf(rec).GetResult(), nil
}

// bound returns a context that ends when ctx ends, and when the build of an attempt shall not go on.
func (p *PipelineRun) bound(ctx context.Context, a PipelineAttempt) (own context.Context, free func()) {
	own, stop := context.WithCancelCause(ctx)
	ends := []ending{p.killed}
	if !a.Keeps {
		ends = append(ends, p.canceled)
	}
	if a.Interruptible {
		ends = append(ends, p.redundant)
	}
	var unhook []func() bool
	for _, e := range ends {
		if e.Err() != nil {
			stop(context.Cause(e)) // before a build begins
		}
		unhook = append(unhook, context.AfterFunc(e, func() { stop(context.Cause(e)) }))
	}
	return own, func() {
		for _, done := range unhook {
			done()
		}
		stop(nil)
	}
}

// ends reports whether a job of the pipeline ends, or does not begin, because the pipeline was cancelled.
func (p *PipelineRun) ends(keeps bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Canceled && !keeps || p.rec.Killed
}

// IsRedundant reports whether a newer pipeline ends the interruptible jobs of this one.
func (p *PipelineRun) IsRedundant() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Redundant
}

// record returns the record of a build, which it makes. It returns nil if the build has not begun and shall not.
func (p *PipelineRun) record(ctx context.Context, id string, a PipelineAttempt) (rec *state.Record, err error) {
	err = p.m.store.Persist(p.life, func(once context.Context) (err error) { //nolint:contextcheck // ctx may have ended
		if rec, err = p.m.store.Record(once, id); err != nil || rec != nil || ctx.Err() != nil {
			return err
		}
		made := &state.Record{
			ID: id, StepsFile: p.asked.GetSource().GetName(), Submitted: time.Now(), Pipeline: p.id, Job: a.Job,
			Interruptible: a.Interruptible,
		}
		if err = p.m.store.Put(once, made); errors.Is(err, state.ErrTaken) { // a manager that has lost the pipeline
			rec, err = p.m.store.Record(once, id)
			return err
		}
		rec = made
		return err
	})
	return rec, err
}

// isQueued reports whether the queue had the request of a build when this manager began to carry the pipeline out.
func (p *PipelineRun) isQueued(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queued[id]
}

// push queues the request of a build.
func (p *PipelineRun) push(ctx context.Context, id string, a PipelineAttempt) error {
	req, err := a.Request(ctx)
	if err == nil {
		err = p.complete(ctx, req, a.Job)
	}
	var r *state.Request
	if err == nil {
		err = p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
			r, err = p.m.store.PushBuild(ctx, id, req, p.m.firstFor(p.id))
			return err
		})
	}
	if err == nil {
		return p.m.beginInRoom(ctx, r, p.id)
	}
	if ctx.Err() != nil {
		return err
	}
	return p.refuse(ctx, id, err)
}

// complete adds the project, the labels and the options of all jobs to a request.
func (p *PipelineRun) complete(ctx context.Context, req *pb.SubmitRequest, job string) error {
	if req.Pipeline == nil {
		req.Pipeline = &pb.PipelineBuild{}
	}
	req.Pipeline.Id, req.Pipeline.Job = p.id, job
	if s := req.GetServices(); s != nil {
		req.Services = &pb.BuildServices{
			Project: p.asked.GetRepository(), Scopes: s.GetScopes(), Attempt: p.attempt(), Server: s.GetServer(),
			Token: s.GetToken(), Relay: s.GetRelay(),
		}
	}
	req.Project, req.ProjectBytes = p.asked.GetProject(), p.asked.GetProjectBytes()
	if req.Labels == nil {
		req.Labels = map[string]string{}
	}
	maps.Copy(req.Labels, p.asked.GetLabels())
	req.RetryLost = p.asked.GetRetryLost()
	if err := p.m.checkLabels(req.GetLabels()); err != nil { // it would wait for ever
		return errors.New(status.Convert(err).Message())
	}
	if err := p.m.vet(req); err != nil {
		return err
	}
	return p.m.checkFiles(ctx, req)
}

// refuse ends a build that cannot be queued.
func (p *PipelineRun) refuse(ctx context.Context, id string, why error) error {
	rec, err := p.m.store.Record(ctx, id)
	if err != nil || rec == nil || rec.Phase != state.PhaseWaiting {
		return cmp.Or(err, why)
	}
	rec.Phase, rec.Ended = state.PhaseEnded, time.Now()
	rec.Result = &state.Result{Reason: string(instance.RunnerSystemFailure), Message: why.Error()}
	return p.m.store.Put(ctx, rec)
}

// await waits for the end of a build. When ctx ends while this manager carries the pipeline out, it cancels the build.
func (p *PipelineRun) await(ctx context.Context, id string, a PipelineAttempt) (rec *state.Record, err error) {
	started := false
	watch := func(ctx context.Context) error {
		return p.m.store.WatchRecord(ctx, id, func(r *state.Record) bool {
			rec = r
			if r == nil {
				return false
			}
			if r.Phase == state.PhaseRunning && !started {
				started = true
				p.showBuild(a.Job, a.Number, r)
				if a.Started != nil {
					a.Started()
				}
			}
			return r.Phase != state.PhaseEnded
		})
	}
	if err = ctx.Err(); err == nil {
		err = watch(ctx)
	}
	if err != nil && ctx.Err() != nil && p.life.Err() == nil {
		if err = p.cancelBuild(id); err == nil { //nolint:contextcheck // ctx has ended
			err = watch(p.life) //nolint:contextcheck // as above
		}
	}
	if err == nil && rec == nil {
		err = fmt.Errorf("the build %s is not kept any more", id)
	}
	return rec, err
}

// cancelBuild cancels a build of the pipeline.
func (p *PipelineRun) cancelBuild(id string) error {
	for {
		err := p.m.cancel(p.life, id)
		if err == nil || errors.Is(err, errEnded) || status.Code(err) == codes.NotFound {
			return nil
		}
		if p.life.Err() != nil {
			return context.Cause(p.life)
		}
		if !errors.Is(err, state.ErrTaken) { // it is taken, or ends, at this time; or another manager has not resumed it yet
			p.m.cfg.Logger.Warn("cannot cancel a build of a pipeline", "build", id, "error", err)
		}
		_ = pause.For(p.life, time.Second/10)
	}
}

// Labels returns the labels of the VMs.
func (p *PipelineRun) Labels() []map[string]string { return p.m.labels() }

// labels returns the labels of the VMs, and of those that can be made.
func (m *Manager) labels() (all []map[string]string) {
	for _, in := range m.cfg.Group.Instances() {
		all = append(all, in.Labels)
	}
	return append(all, m.groups.labels()...)
}

// Outputs returns the outputs of a build that has ended. They are nil if it has reported none.
func (p *PipelineRun) Outputs(ctx context.Context, build string) (outputs *stepmuxv1.Outputs, err error) {
	err = p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
		outputs, err = p.m.store.Outputs(ctx, build)
		return err
	})
	return outputs, err
}

// KeepOutputs keeps the outputs of a job that has no build of its own, for a door.
func (p *PipelineRun) KeepOutputs(job string, outputs *stepmuxv1.Outputs) {
	err := p.m.store.Persist(p.life, func(ctx context.Context) error {
		return p.m.store.KeepOutputs(ctx, outputsOf(p.id, job), outputs)
	})
	if err != nil && p.life.Err() == nil {
		p.Note(fmt.Sprintf("the outputs of %s cannot be kept: %v", job, err))
	}
}

// outputsOf is the ID under which the outputs of a job without a build are kept.
func outputsOf(pipeline, job string) string { return state.PipelineBuildID(pipeline, job, 0, 1) }

// ReadArtifacts writes the archive of a build's artifacts to a Writer.
func (p *PipelineRun) ReadArtifacts(ctx context.Context, build string, to io.Writer) error {
	if err := p.m.files.ReadResult(ctx, build, to); err != nil {
		return fmt.Errorf("read the artifacts of the build %s: %w", build, err)
	}
	return nil
}

// KeepArchive keeps an archive for builds that are about to be queued.
func (p *PipelineRun) KeepArchive(ctx context.Context, digest string, size int64, from io.Reader) error {
	return p.m.keepArchive(ctx, digest, size, from)
}

func (m *Manager) keepArchive(ctx context.Context, digest string, size int64, from io.Reader) error {
	kept, err := m.files.UseProject(ctx, digest, size)
	if err != nil || kept {
		return err
	}
	upload, err := m.files.BeginProject(ctx, digest, size)
	if err != nil {
		return err
	}
	to := struct{ io.Writer }{upload}
	if _, err := io.CopyBuffer(to, struct{ io.Reader }{from}, make([]byte, archive.Piece)); err != nil {
		upload.Discard()
		return err
	}
	if err := m.files.KeepProject(ctx, upload); err != nil {
		return err
	}
	_, err = m.files.UseProject(ctx, digest, size)
	return err
}

// Lock waits until no other job of the project has a lock, for the attempt that is to run next. It is free again when
// the build of that has ended. The caller calls unlock: it ends a build that does not begin because the pipeline is
// cancelled.
func (p *PipelineRun) Lock(
	ctx context.Context, name string, a PipelineAttempt, tell func(holder string),
) (unlock func(), err error) {
	id := state.PipelineBuildID(p.id, a.Job, p.round(a.Job), a.Number)
	ctx, free := p.bound(ctx, a)
	unlock = func() {
		if free(); p.ends(a.Keeps) || a.Interruptible && p.IsRedundant() {
			_ = p.cancelBuild(id) // it fails at the end of the manager only
		}
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	rec, err := p.record(ctx, id, a) //nolint:contextcheck // it looks also when ctx has ended
	if err != nil || rec == nil || rec.Phase == state.PhaseEnded || ctx.Err() != nil {
		return unlock, err
	}
	name = p.asked.GetRepository() + "\n" + name
	for {
		var holder string
		err := p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
			holder, err = p.m.store.Lock(ctx, name, id)
			return err
		})
		if err != nil || holder == id {
			return unlock, err
		}
		tell(holder)
		if err := p.m.store.AwaitEnd(ctx, holder); err != nil {
			return unlock, err
		}
	}
}
