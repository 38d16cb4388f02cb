package whole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// carrier carries out the jobs of one pipeline.
type carrier struct {
	*runner
	pipeline *Pipeline
	plan     *pipeline.Plan
	scope
	// done has the results of the jobs. Only the job itself and, for its status, the scheduler write its entry, and only
	// jobs that wait for it read that.
	done []made
}

// scope describes all jobs of a pipeline.
type scope struct {
	prefix string // of their names
	// anew says that they do not have the results of an earlier run.
	anew bool
	// held are the groups of the jobs to which the pipeline belongs.
	held []string
	// keeps says that they go on when the run is cancelled.
	keeps bool
}

// TimedOut is the reason of the failure of a job that took too long.
const TimedOut = "job_execution_timeout"

// timedOut says that to people.
const timedOut = "timed out"

// The reasons of failures, in GitLab's words.
var reasons = map[standalone.Reason]string{
	standalone.Script:   "script_failure",
	standalone.TimedOut: TimedOut,
	standalone.System:   "runner_system_failure",
	standalone.Invalid:  "runner_system_failure",
}

// errManyJobs says that the jobs of a run start too many others.
var errManyJobs = fmt.Errorf("the run would have more than %d jobs", pipeline.MaxNodes)

// errJob is the failure of a job whose report says the rest.
var errJob = errors.New("the job failed")

// The exit codes of jobs that have none of a script, as those of the program.
const (
	exitSystem   = 3
	exitTimeout  = 124
	exitReplaced = 125
)

// exitCode returns the exit code of a job that failed.
func exitCode(report *standalone.Report) int {
	switch {
	case report.Reason == standalone.TimedOut:
		return exitTimeout
	case report.Reason != standalone.Script:
		return exitSystem
	case report.ExitCode == nil:
		return 1
	}
	return *report.ExitCode
}

// Carry carries out an attempt of a job.
func (c *carrier) Carry(ctx context.Context, node, attempt int) pipeline.Result {
	job := c.pipeline.Jobs[node]
	if k, ok := c.earlier(node); ok {
		result := &c.done[node]
		if result.values, result.resumed = k.Values, true; !k.Archive.IsZero() {
			result.archive = k.Archive
			result.archive.Path = c.shelf.Path(k.Archive.Digest)
		}
		return pipeline.Result{}
	}
	run := func(ctx context.Context) pipeline.Result { return replaced(c.attempt(ctx, node, attempt)) }
	if job.Trigger != nil {
		run = func(ctx context.Context) pipeline.Result { return c.start(ctx, node) }
	}
	switch {
	case job.Open != nil:
		return c.open(ctx, node)
	case job.Group == "":
		return run(ctx)
	}
	if job.Group == c.group || slices.Contains(c.held, job.Group) {
		return pipeline.Result{As: pipeline.Cancelled, Why: waitsForItself, ExitCode: exitInvalid}
	}
	own, leave, err := c.enter(ctx, Member{
		Group: job.Group, Job: c.name(node), Cancels: job.CancelInProgress, Keeps: c.keeps, Newer: errNewerJob,
	}, c.teller(node))
	switch {
	case errors.Is(err, ErrCancelled):
		return pipeline.Result{Err: err, As: pipeline.Cancelled, Why: Cancelled}
	case err != nil:
		return replaced(c.ended(ctx, node, nil, err))
	}
	defer leave()
	return run(own)
}

// waitsForItself is the reason of a job that does not run because of its group.
const waitsForItself = "its concurrency group is that of the workflow or job that it belongs to, for which it would " +
	"wait without end"

// replaced returns the result of a job: that of a job which ended because of a newer job or run says so.
func replaced(r pipeline.Result) pipeline.Result {
	if cause := newerIn(r.Err); cause != nil {
		r.As, r.Why, r.ExitCode = pipeline.Cancelled, cause.Error(), exitReplaced
	}
	return r
}

// attempt waits for the lock of a job and for a slot, and carries the job out.
func (c *carrier) attempt(ctx context.Context, node, number int) pipeline.Result {
	a := &carry.Attempt{
		Name: c.name(node), Number: number, Keeps: c.keeps, Interruptible: c.pipeline.Jobs[node].Interruptible,
		Started: func() { c.started(node) }, Say: c.teller(node),
		SayOnce: func(line string) { c.notices(c.name(node), []string{line}) },
	}
	if lock := c.pipeline.Jobs[node].Lock; lock != "" {
		take := c.lock
		if c.cfg.Lock != nil {
			take = c.cfg.Lock
		}
		unlock, err := take(ctx, lock, a)
		if err != nil {
			return c.ended(ctx, node, nil, err)
		}
		defer unlock()
	}
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return pipeline.Result{Err: context.Cause(ctx)}
	}
	defer func() { <-c.slots }()
	ctx, end := c.redundant.start(ctx, c.pipeline.Jobs[node])
	defer end()
	report, err := c.carry(ctx, node, a)
	return c.ended(ctx, node, report, err)
}

// ended returns the result of an attempt. err says that this machine could not carry it out.
func (c *carrier) ended(ctx context.Context, node int, report *standalone.Report, err error) pipeline.Result {
	switch {
	case newerIn(err) != nil:
		return pipeline.Result{Err: err}
	case err != nil && ctx.Err() != nil:
		return pipeline.Result{Err: context.Cause(ctx)}
	case err != nil:
		c.system(fmt.Errorf("job %.64q: %w", c.name(node), err))
		return pipeline.Result{Err: err, ExitCode: exitSystem, Reason: reasons[standalone.System]}
	case report.Status == Success:
		if report.Passing { // a run that is resumed does not have all that the job has made
			c.pass(c.name(node))
			return pipeline.Result{}
		}
		made := &c.done[node] // its state belongs to the scheduler
		c.store.keep(kept{Name: c.name(node), Values: made.values, Archive: made.archive})
		return pipeline.Result{}
	case report.Status == Cancelled && ctx.Err() == nil: // by another hand
		return pipeline.Result{Err: errJob, As: pipeline.Cancelled, Why: Cancelled}
	}
	result := pipeline.Result{
		Err: cmp.Or(context.Cause(ctx), errJob), ExitCode: exitCode(report), Reason: reasons[report.Reason],
	}
	if report.Reason == standalone.TimedOut && c.pipeline.Jobs[node].LateIsCancelled &&
		!c.pipeline.Graph.Nodes[node].MayFail.Any {
		result.As, result.Why = pipeline.Cancelled, timedOut
	}
	return result
}

// start runs a child pipeline. A job that does not depend on it has succeeded at once.
func (c *carrier) start(ctx context.Context, node int) pipeline.Result {
	trigger := c.pipeline.Jobs[node].Trigger
	child := trigger.Child
	if trigger.Read != nil {
		var err error
		if child, err = trigger.Read(c.before(node), c.artifactFor(ctx, node)); err == nil && trigger.choice != nil {
			err = child.Choose(*trigger.choice)
		}
		if err == nil {
			err = Check(child)
		}
		if err != nil {
			c.teller(node)(err.Error())
			return pipeline.Result{Err: err, ExitCode: 1}
		}
	}
	if len(child.Jobs) == 0 {
		c.teller(node)("the child pipeline has no job")
		return pipeline.Result{Err: errJob, ExitCode: 1}
	}
	run := func(ctx context.Context) pipeline.Result {
		of := c.scope
		of.prefix = c.name(node) + Separator
		if group := c.pipeline.Jobs[node].Group; group != "" {
			of.held = append(slices.Clip(of.held), group)
		}
		jobs, ended, err := c.carryOut(ctx, child, of)
		if err != nil {
			return c.notCarried(node, err)
		}
		report := jobs.report(ended)
		c.mu.Lock()
		c.reports[c.name(node)] = report
		c.mu.Unlock()
		if trigger.Values != nil {
			if c.done[node].values, err = trigger.Values(jobs.byEnd(ended)); err != nil {
				c.teller(node)(err.Error())
				return pipeline.Result{Err: err, ExitCode: exitInvalid}
			}
			if c.cfg.Called != nil && c.prefix == "" {
				c.cfg.Called(c.name(node), c.done[node].values)
			}
			if report.Status == Cancelled {
				return pipeline.Result{Err: errJob, As: pipeline.Cancelled, ExitCode: report.ExitCode}
			}
		}
		if report.Status != Success {
			return pipeline.Result{Err: errJob, ExitCode: report.ExitCode}
		}
		if report.isComplete() && !c.hasPassed(c.name(node)+Separator) {
			c.store.keep(kept{Name: c.name(node), Values: c.done[node].values})
		}
		return pipeline.Result{}
	}
	if trigger.Depend {
		return run(ctx)
	}
	// The context of the node ends with this call.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	c.children.Go(func() {
		defer stop(nil)
		end := func() { stop(context.Cause(c.life)) }
		defer context.AfterFunc(c.life, end)() //nolint:contextcheck // of the whole run, not of the job
		run(ctx)
	})
	return pipeline.Result{}
}

func (c *carrier) name(node int) string { return c.prefix + c.pipeline.Jobs[node].Name }

// carry has an attempt of a job carried out, and keeps its outcome.
func (c *carrier) carry(ctx context.Context, node int, a *carry.Attempt) (*standalone.Report, error) {
	c.done[node].archive, c.done[node].values = carry.Archive{}, nil // of an earlier attempt
	job, err := c.pipeline.Jobs[node].Prepare(c.before(node))
	if err != nil {
		return nil, err
	}
	a.Prepared, a.Archives, a.Timeout = job, []carry.Archive{c.project}, c.cfg.Timeout
	a.Shelf, a.TempDir, a.WithTests, a.Tracked = c.shelf, c.dir, c.cfg.WithTests, c.tracked
	for from := range c.plan.Sources(node, pipeline.Files) {
		if made := c.done[from].archive; !made.IsZero() {
			a.Archives = append(a.Archives, made)
		}
	}
	if limit := c.pipeline.Jobs[node].Timeout; limit > 0 && (a.Timeout == 0 || limit < a.Timeout) {
		a.Timeout = min(limit, 24*time.Hour)
	}
	var end func()
	a.Stdout, a.Stderr, end = c.cfg.Output(a.Name)
	defer end()
	made, err := c.cfg.Executor.Execute(ctx, c.abort, a)
	if err == nil && ctx.Err() != nil { // also a job that has just succeeded: its artifacts are not taken any more
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := c.tests.add(made.Tests); err != nil {
		a.Say("tests: " + err.Error())
	}
	c.done[node].archive, c.done[node].values = made.Artifacts, made.Values
	c.done[node].remarks, c.done[node].why = c.remarks(node, made.Report), whyOf(made.Report)
	return made.Report, nil
}

// started notes that an attempt of a job has its slot.
func (c *carrier) started(node int) {
	if c.done[node].began.IsZero() {
		c.done[node].began = time.Now()
	}
	c.watch(node, pipeline.Running)
}

// waits reports whether a job that runs may still wait for its slot.
func (c *carrier) waits(node int) bool {
	job := c.pipeline.Jobs[node]
	return job.Open == nil && job.Trigger == nil
}

// watch tells the status of a job.
func (c *carrier) watch(node int, s pipeline.State) {
	if c.cfg.Watch != nil {
		c.cfg.Watch(c.name(node), s.String())
	}
}

// before returns the jobs from which a job gets values.
func (c *carrier) before(node int) (all []Before) {
	for from := range c.plan.Sources(node, pipeline.Values) {
		all = append(all, c.describe(from))
	}
	return all
}

// describe describes a job that has ended.
func (c *carrier) describe(node int) Before {
	job, done := c.pipeline.Jobs[node], &c.done[node]
	return Before{job.Name, job.Base, done.status.State, done.values}
}

// artifactFor returns a function that reads artifacts of the jobs that a job waits for.
func (c *carrier) artifactFor(ctx context.Context, node int) ReadArtifact {
	return func(job, path string) (_ []byte, err error) {
		for from := range c.plan.Sources(node, pipeline.Control) {
			j := c.pipeline.Jobs[from]
			if made := c.done[from].archive; !made.IsZero() && (j.Name == job || j.Base == job) {
				return c.readFrom(ctx, made, path)
			}
		}
		return nil, fmt.Errorf("the job %.64q has made no artifacts, or is not before this one", job)
	}
}

// maxPipeline bounds the text of a pipeline that a job has made, in bytes: more than a text may have.
const maxPipeline = lang.MaxText + 1

// readFrom reads a file of an archive.
func (c *carrier) readFrom(ctx context.Context, from carry.Archive, path string) (_ []byte, err error) {
	dir, err := os.MkdirTemp(c.dir, "artifacts-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	if err := from.Unpack(ctx, dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return boundedfile.ReadBy(root.OpenFile, path, maxPipeline)
}

// teller returns a function that says lines about a job.
func (c *carrier) teller(node int) func(string) {
	return func(text string) { c.cfg.Say(c.name(node) + ": " + text) }
}
