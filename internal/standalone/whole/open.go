package whole

import (
	"context"
	"errors"
	"slices"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/pipeline"
)

// Opened says how a job runs.
type Opened struct {
	// Skip says in a few words why the job does not run. It is empty for a job that does.
	Skip string
	// Builds is the pipeline of the builds of the job. Keeps says that they go on when the run is cancelled.
	Builds *Pipeline
	Keeps  bool
	// Values returns the values that the job gives to others. builds are its builds, in the order in which they ended.
	Values func(builds []Before) map[string]string
}

// exitInvalid is the exit code of a job whose text turns out to be wrong when it starts.
const exitInvalid = 2

// open opens a job, and runs its builds. When all jobs are killed, no job opens.
func (c *carrier) open(ctx context.Context, node int) pipeline.Result {
	if c.abort.Err() != nil {
		return pipeline.Result{Err: context.Cause(ctx), As: pipeline.Cancelled}
	}
	cut, began, anew := ctx.Err() != nil, false, c.isAnew(node)
	if c.cfg.Began != nil && !c.keeps {
		var before bool
		began, before = c.cfg.Began(c.name(node))
		cut = !began && (cut || before)
	}
	c.done[node].anew = true
	opened, err := c.pipeline.Jobs[node].Open(c.before(node), cut, c.teller(node))
	if err != nil {
		c.teller(node)(err.Error())
		return pipeline.Result{Err: err, ExitCode: exitInvalid}
	}
	if opened.Skip != "" {
		c.done[node].values, c.done[node].anew = opened.Values(nil), anew
		as := pipeline.Skipped
		if cut {
			as = pipeline.Cancelled
		}
		return pipeline.Result{As: as, Why: opened.Skip}
	}
	life, end := c.keep(ctx, opened.Keeps || began)
	defer end()
	if anew {
		c.forget(opened.Builds)
	}
	of := c.scope
	of.anew, of.keeps = anew, c.keeps || opened.Keeps
	builds, run, err := c.carryOut(life, opened.Builds, of)
	if err != nil {
		return c.notCarried(node, err)
	}
	report := builds.report(run)
	c.done[node].report, c.done[node].values = report, opened.Values(builds.byEnd(run))
	c.done[node].anew = anew || slices.ContainsFunc(builds.done, func(m made) bool { return !m.resumed })
	if failed, ok := run.Failed(); ok {
		r := run.Status(failed).Result
		return pipeline.Result{Err: errJob, ExitCode: r.ExitCode, Reason: r.Reason}
	}
	if report.Status == Cancelled {
		return pipeline.Result{Err: errJob, As: pipeline.Cancelled, ExitCode: report.ExitCode}
	}
	return pipeline.Result{}
}

// notCarried returns the result of a job whose builds, or whose child pipeline, could not be carried out.
func (c *carrier) notCarried(node int, err error) pipeline.Result {
	if errors.Is(err, errManyJobs) {
		c.teller(node)(err.Error())
		return pipeline.Result{Err: err, ExitCode: exitInvalid}
	}
	c.system(err)
	return pipeline.Result{Err: err, ExitCode: exitSystem, Reason: reasons[standalone.System]}
}

// keep returns the context for the builds of a job: ctx, or one that ends only when all jobs are killed.
func (c *carrier) keep(ctx context.Context, keeps bool) (life context.Context, end func()) {
	if !keeps {
		return ctx, func() {}
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(c.abort, func() { stop(context.Cause(c.abort)) })
	return life, func() {
		unhook()
		stop(nil)
	}
}

// byEnd describes the jobs of a run that has ended, in the order in which they ended.
func (c *carrier) byEnd(run *pipeline.Progress) []Before {
	order := make([]int, len(c.done))
	all := make([]Before, len(c.done))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return run.Status(a).Ended.Compare(run.Status(b).Ended) })
	for i, node := range order {
		all[i] = c.describe(node)
	}
	return all
}
