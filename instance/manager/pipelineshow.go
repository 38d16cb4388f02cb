package manager

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// showPause is the least time between two times at which the jobs of a pipeline are kept, and showJobs is for how many
	// jobs it is a millisecond longer.
	showPause, showJobs = 100 * time.Millisecond, 10
	// maxNotes bounds the lines about the jobs of a pipeline, and maxJobLine the bytes of each.
	maxNotes, maxJobLine = 200, 1000
)

// statusesKept are shown until it is known again how a job stands.
var statusesKept = []string{"success", "warning", "running", statusManual}

// showAgain returns the pipeline as it was shown last, until this manager knows more. It reports whether a build had
// not ended then.
func (p *PipelineRun) showAgain(ctx context.Context, plan Planned) (shown *pb.Pipeline, open bool, err error) {
	shown = plan.Shown()
	var last *pb.Pipeline
	err = p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
		last, err = p.m.store.Jobs(ctx, p.id)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	known := map[string]*pb.PipelineJob{}
	for _, j := range last.GetJobs() {
		known[j.GetName()] = j
		open = open || j.GetBuild() != "" && j.GetFinished() == nil
	}
	for _, j := range shown.GetJobs() {
		was := known[j.GetName()]
		if was.GetBuild() != "" {
			j.Build, j.Attempts, j.Started, j.Finished = was.GetBuild(), was.GetAttempts(), was.GetStarted(), was.GetFinished()
			j.Remarks = was.GetRemarks()
		}
		if slices.Contains(statusesKept, was.GetStatus()) {
			j.Status = was.GetStatus()
		}
	}
	for _, j := range shown.GetJobs() {
		delete(known, j.GetName())
	}
	for _, name := range slices.Sorted(maps.Keys(known)) { // builds that are known once other jobs have ended
		if j := known[name]; j.GetBuild() != "" && j.GetFinished() == nil {
			shown.Jobs = append(shown.Jobs, j)
		}
	}
	return shown, open, nil
}

// show keeps the jobs as they are shown when they have changed, until the work ends.
func (p *PipelineRun) show() {
	for {
		select {
		case <-p.dirty:
		case <-p.life.Done():
			return
		}
		n := p.keepShown()
		_ = pause.For(p.life, showPause+time.Duration(n/showJobs)*time.Millisecond)
	}
}

// keepShown keeps the jobs as they are shown, and returns how many there are. At rest it does nothing.
func (p *PipelineRun) keepShown() int {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.mu.Lock()
	var jobs *pb.Pipeline
	if p.jobs != nil {
		jobs = proto.CloneOf(p.shown)
	}
	p.mu.Unlock()
	if jobs == nil {
		return 0
	}
	if err := p.m.store.PutJobs(p.life, p.id, jobs); err != nil && p.life.Err() == nil {
		p.m.cfg.Logger.Warn("cannot keep the jobs of a pipeline", "pipeline", p.id, "error", err)
	}
	return len(jobs.GetJobs())
}

// touch lets show keep the jobs.
func (p *PipelineRun) touch() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// Watch shows the status of a job.
func (p *PipelineRun) Watch(job, status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.jobLocked(job); j != nil && j.GetStatus() != status {
		j.Status, j.Why = status, ""
		p.touch()
	}
}

// Waits shows why a job waits, until its status changes.
func (p *PipelineRun) Waits(job, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.jobLocked(job); j != nil && j.GetWhy() != why {
		j.Why = termtext.Cut(why, maxJobLine)
		p.touch()
	}
}

// jobLocked returns a job as it is shown: one of a child pipeline may be new. It is nil when nothing is shown any more.
// p.mu is held.
func (p *PipelineRun) jobLocked(name string) *pb.PipelineJob {
	if p.jobs == nil {
		return nil
	}
	if p.jobs[name] == nil {
		j := &pb.PipelineJob{Name: name, Base: name}
		p.jobs[name], p.shown.Jobs = j, append(p.shown.Jobs, j)
	}
	return p.jobs[name]
}

// Note shows a line about the jobs, once.
func (p *PipelineRun) Note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown != nil && len(p.shown.Notes) < maxNotes && !slices.Contains(p.shown.Notes, line) {
		p.shown.Notes = append(p.shown.Notes, termtext.Cut(line, maxJobLine))
		p.touch()
	}
}

// showBuild shows the build of an attempt of a job.
func (p *PipelineRun) showBuild(job string, attempt int, r *state.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobLocked(job)
	if j == nil {
		return
	}
	if attempt == 1 { // else the job has begun with the first one
		j.Started = nil
	}
	j.Build, j.Attempts = r.ID, int32(attempt) // it is small
	j.Started = cmp.Or(j.GetStarted(), timeOf(r.Started))
	j.Finished, j.Remarks = timeOf(r.Ended), buildOf(r).GetResult().GetRemarks()
	if r.Phase == state.PhaseRunning {
		j.Status, j.Why = "running", ""
	}
	p.touch()
}
