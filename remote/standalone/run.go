package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Config says where and how a job runs.
type Config struct {
	// WorkDir is where its steps run: an absolute path of a directory that exists.
	WorkDir string
	// TempDir is where it gets a private directory, which goes with its end. If empty, that of the system.
	TempDir string
	// Fetcher gets the steps that are not local. If nil, the cache in CacheDir does.
	Fetcher engine.Fetcher
	// CacheDir is where steps that were fetched are kept. If empty, [fetch.DefaultDir].
	CacheDir string
	// Timeout is the time it has. If zero, 24 h.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when it is stopped. If zero, 10 s. If negative, none.
	Grace time.Duration

	// Trace asks for a trace of the job, which the report has then. May be nil.
	Trace *Trace
	// Version is that of this program, for the trace.
	Version string

	// Stdout and Stderr get what its steps write. A Stdout that fails stops the job.
	Stdout, Stderr io.Writer
	// Observe is told each change of a step, after what the steps before it wrote and before what it will. May
	// be nil.
	Observe func(engine.StepResult)
}

// Trace asks for a trace of a job.
type Trace struct {
	// File is where it is written, also if the job does not succeed: as a whole or not at all, in the place of what
	// may be there. If empty, nowhere.
	File string
	// Salt is for the HMACs of masked values. If nil, a new one.
	Salt *mask.Salt
}

// jobID names the one job of a store.
const jobID = "local"

// Run runs a job to its end. When ctx ends the job is stopped, with its grace, and of its steps only those run on
// that always do; when abort ends too, or before, it is killed. The report tells how the job ended; an error,
// that this machine could not run it to its end, or show all of its output. When Run returns, nothing of the job
// is left.
func Run(ctx, abort context.Context, j *Job, cfg Config) (report *Report, err error) {
	dir, err := os.MkdirTemp(cfg.TempDir, "stepmux-local-")
	if err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	defer func() {
		if removeErr := os.RemoveAll(dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove temporary directory: %w", removeErr))
		}
	}()
	if cfg.Observe == nil {
		cfg.Observe = func(engine.StepResult) {}
	}
	if cfg.Fetcher == nil {
		components, err := fetch.New(fetch.Config{Dir: cfg.CacheDir})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, components.Close()) }()
		cfg.Fetcher = components
	}
	store, err := job.New(job.Config{Dir: dir, OrphanDir: dir, Fetcher: cfg.Fetcher, Version: cfg.Version})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }() //nolint:contextcheck // whatever became of ctx
	grace := cfg.Grace
	if grace < 0 {
		grace = time.Nanosecond
	}
	var made *trace.Trace
	err = store.Create(job.Spec{
		Trace: j.trace(cfg.Trace, &made),
		ID:    jobID, Definition: j.definition, WorkDir: cfg.WorkDir, Timeout: cfg.Timeout, Grace: grace,
		Inputs: j.inputs, Vars: j.vars, Env: j.env, RunnerEnv: j.runnerEnv, Secrets: j.secrets, MayFail: j.mayFail,
	})
	if err != nil {
		return nil, err
	}
	follower, err := store.Follow(jobID)
	if err != nil {
		return nil, err
	}
	defer follower.Close()
	defer context.AfterFunc(ctx, func() { store.Stop(jobID) })()
	defer context.AfterFunc(abort, func() { store.Kill(jobID) })()

	alive := context.WithoutCancel(ctx)
	showErr := show(alive, follower, cfg)
	if showErr != nil {
		store.Stop(jobID) // who asked for it does not see it any more
	}
	stat, result, err := follower.Wait(alive)
	if err != nil {
		return nil, err
	}
	report = newReport(stat, result)
	if cfg.Trace != nil {
		file, traceErr := follower.Trace()
		switch {
		case traceErr == nil:
			file.Close()
		case !errors.Is(traceErr, job.ErrNoTrace): // of a job that there was no room for, which the report tells
			showErr = errors.Join(showErr, traceErr)
		}
		report.Trace = made
	}
	return report, showErr
}

// trace is what a job is told of the trace that is asked for, which will be in made.
func (j *Job) trace(t *Trace, made **trace.Trace) *job.TraceSpec {
	if t == nil {
		return nil
	}
	return &job.TraceSpec{
		Source: j.source, Text: j.text, Steps: j.steps, Salt: t.Salt, File: t.File,
		Done: func(t *trace.Trace) { *made = t },
	}
}
