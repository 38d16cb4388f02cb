package whole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/archive"
)

// carrier carries out the jobs of one pipeline.
type carrier struct {
	*runner
	pipeline *Pipeline
	plan     *pipeline.Plan
	prefix   string
	// done has the results of the jobs. Only the job itself and, for its status, the scheduler write its entry, and only
	// jobs that wait for it read that.
	done []made
}

// TimedOut is the reason of the failure of a job that took too long.
const TimedOut = "job_execution_timeout"

// The reasons of failures, in GitLab's words.
var reasons = map[standalone.Reason]string{
	standalone.Script:   "script_failure",
	standalone.TimedOut: TimedOut,
	standalone.System:   "runner_system_failure",
	standalone.Invalid:  "runner_system_failure",
}

// errJob is the failure of a job whose report says the rest.
var errJob = errors.New("the job failed")

// The exit codes of jobs that have none of a script, as those of the program.
const (
	exitSystem  = 3
	exitTimeout = 124
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
func (c *carrier) Carry(ctx context.Context, node, _ int) pipeline.Result {
	job := c.pipeline.Jobs[node]
	switch {
	case job.Open != nil:
		return c.open(ctx, node)
	case job.Trigger != nil:
		return c.start(ctx, node)
	case job.Group == "":
		return c.attempt(ctx, node)
	}
	ctx, leave, err := c.groups.enter(ctx, job.Group, job.CancelInProgress)
	if err != nil {
		return replaced(pipeline.Result{Err: err})
	}
	defer leave()
	return replaced(c.attempt(ctx, node))
}

// replaced returns the result of a job of a group: that of a job which another one has replaced says so.
func replaced(r pipeline.Result) pipeline.Result {
	if errors.Is(r.Err, errReplaced) {
		r.As, r.Why = pipeline.Cancelled, errReplaced.Error()
	}
	return r
}

// attempt waits for a slot, and carries a job with steps out.
func (c *carrier) attempt(ctx context.Context, node int) pipeline.Result {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return pipeline.Result{Err: context.Cause(ctx)}
	}
	defer func() { <-c.slots }()
	if c.done[node].began.IsZero() {
		c.done[node].began = time.Now()
	}
	report, err := c.carry(ctx, node)
	switch {
	case err != nil && ctx.Err() != nil:
		return pipeline.Result{Err: context.Cause(ctx)}
	case err != nil:
		c.system(fmt.Errorf("job %.64q: %w", c.name(node), err))
		return pipeline.Result{Err: err, ExitCode: exitSystem, Reason: reasons[standalone.System]}
	case report.Status == Success:
		return pipeline.Result{}
	}
	return pipeline.Result{
		Err: cmp.Or(context.Cause(ctx), errJob), ExitCode: exitCode(report), Reason: reasons[report.Reason],
	}
}

// start runs a child pipeline. A job that does not depend on it has succeeded at once.
func (c *carrier) start(ctx context.Context, node int) pipeline.Result {
	trigger := c.pipeline.Jobs[node].Trigger
	run := func(ctx context.Context) pipeline.Result {
		report, err := c.run(ctx, trigger.Child, c.name(node)+" / ")
		if err != nil {
			c.system(err)
			return pipeline.Result{Err: err, ExitCode: exitSystem, Reason: reasons[standalone.System]}
		}
		c.teller(node)("child pipeline: " + report.Status)
		if report.Status != Success {
			return pipeline.Result{Err: errJob, ExitCode: report.ExitCode}
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

// teller returns a function that says lines about a job.
func (c *carrier) teller(node int) func(string) {
	return func(line string) { c.cfg.Say(c.name(node) + ": " + line) }
}

// carry runs a job in a directory of its own.
func (c *carrier) carry(ctx context.Context, node int) (report *standalone.Report, err error) {
	dir, err := c.newDir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	if err := c.fill(ctx, node, dir); err != nil {
		return nil, err
	}
	job, err := c.pipeline.Jobs[node].Prepare(c.before(node))
	if err != nil {
		return nil, err
	}
	cfg := c.cfg.Config
	cfg.WorkDir, cfg.TempDir = dir, c.dir
	if limit := c.pipeline.Jobs[node].Timeout; limit > 0 && (cfg.Timeout == 0 || limit < cfg.Timeout) {
		cfg.Timeout = min(limit, 24*time.Hour)
	}
	stdout, stderr, end := c.cfg.Output(c.name(node))
	defer end()
	cfg.Stdout, cfg.Stderr, cfg.Observe = stdout, stderr, nil
	if report, err = standalone.Run(ctx, c.abort, job.Job, cfg); err != nil {
		return report, err
	}
	return report, c.take(context.WithoutCancel(ctx), node, dir, job, report)
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
	return Before{job.Name, job.Base, done.status.State, done.status.Result.Reason, done.values}
}

// fill puts the files of the project and the artifacts of other jobs into the directory of a job.
func (c *carrier) fill(ctx context.Context, node int, dir string) error {
	if err := unpack(ctx, c.project, dir); err != nil {
		return fmt.Errorf("unpack the project: %w", err)
	}
	for from := range c.plan.Sources(node, pipeline.Files) {
		if name := c.done[from].archive; name != "" {
			if err := unpack(ctx, name, dir); err != nil {
				return fmt.Errorf("unpack the artifacts of %.64q: %w", c.name(from), err)
			}
		}
	}
	return nil
}

// unpack unpacks an archive.
func unpack(ctx context.Context, name, dir string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = archive.Extract(ctx, file, dir, archive.Bounds{})
	return err
}

// take keeps the artifacts and the values of a job that has ended.
func (c *carrier) take(ctx context.Context, node int, dir string, job *Prepared, report *standalone.Report) error {
	tell := func(text string) { c.teller(node)("artifacts: " + text) }
	result := &c.done[node]
	result.archive, result.values = "", nil // of an earlier attempt
	if job.Values != nil {
		var err error
		if result.values, err = job.Values(dir, report); err != nil {
			tell(err.Error())
		}
	}
	a := job.Artifacts
	if len(a.Paths) == 0 && !a.Untracked || !a.When.holds(report) {
		return nil
	}
	if a.Untracked {
		tell("untracked is not known here: the job has no git repository")
	}
	found, err := archive.Find(ctx, archive.Selection{
		Dir: dir, Paths: a.Paths, Exclude: a.Exclude, OnlyInside: true, Info: func(string) {}, Warn: tell,
	})
	if err != nil {
		return err
	}
	defer found.Close()
	name := filepath.Join(c.dir, filepath.Base(dir)+".artifacts")
	err = archive.Replace(name, func(to *os.File) error {
		return found.Write(ctx, to, archive.TarZstd, "fastest")
	})
	if err != nil {
		return fmt.Errorf("keep the artifacts: %w", err)
	}
	result.archive = name
	return nil
}
