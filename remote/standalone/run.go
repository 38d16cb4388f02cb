package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/walls"
)

// Config says where and how a job runs.
type Config struct {
	// WorkDir is the directory of the steps: an absolute path of a directory that exists.
	WorkDir string
	// TempDir is the parent of a private directory that is removed at the end. If empty, that of the system.
	TempDir string
	// Fetcher gets the steps that are not local. If nil, a [fetch.Store] in CacheDir.
	Fetcher component.Getter
	// CacheDir keeps fetched steps. If empty, [component.DefaultDir].
	CacheDir string
	// Actions says how GitHub Actions run.
	Actions action.Config
	// Timeout bounds the job. If zero, 24 h.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when the job is stopped. If zero, 10 s. If negative, none.
	Grace time.Duration

	// PassEnv and UnsafeExports replace those of the job. May be nil.
	PassEnv       *engine.PassEnv
	UnsafeExports *engine.UnsafeExports

	// Trace asks for a trace of the job, which becomes part of the report. May be nil.
	Trace *Trace
	// Version is that of this program, for the trace.
	Version string

	// Stdout and Stderr get the output of the steps. The job is stopped if one of them fails.
	Stdout, Stderr io.Writer
	// Observe is told each change of a step, in order with the output: after that of earlier steps, and before that of the
	// step itself. May be nil.
	Observe func(engine.StepResult)
}

// Trace asks for a trace of a job.
type Trace struct {
	// File gets the trace, also if the job does not succeed. It is replaced as a whole or not at all. If empty, no file is
	// written.
	File string
	// Salt is for the HMACs of masked values. If nil, a new one.
	Salt *mask.Salt
}

// jobID names the only job of a store.
const jobID = "local"

// Run runs a job to its end. When ctx ends, the job gets SIGTERM, its grace and SIGKILL, and only steps with when:
// always still run; when abort ends, the job is killed. The report tells how the job ended. An error tells that this
// machine could not run the job to its end, or could not show all of its output. When Run returns, all processes and
// directories of the job are gone.
func Run(ctx, abort context.Context, j *Job, cfg Config) (report *Report, err error) {
	if cfg.Observe == nil {
		cfg.Observe = func(engine.StepResult) {}
	}
	store, closeStore, err := openStore(cfg.TempDir, "stepmux-local-", cfg.CacheDir, cfg.Actions,
		job.Config{Fetcher: cfg.Fetcher, Version: cfg.Version, PassEnv: cfg.PassEnv, UnsafeExports: cfg.UnsafeExports})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }() //nolint:contextcheck // whatever became of ctx
	grace := cfg.Grace
	if grace < 0 {
		grace = time.Nanosecond
	}
	var made *trace.Trace
	spec := job.Spec{ID: jobID, WorkDir: cfg.WorkDir, Secrets: j.Secrets, Config: j.Config}
	spec.Timeout, spec.Grace = cfg.Timeout, grace
	if cfg.Trace != nil {
		spec.Trace = &job.TraceSpec{
			Source: j.Source, Text: j.text, Steps: j.Steps, Salt: cfg.Trace.Salt, File: cfg.Trace.File,
			Done: func(t *trace.Trace) { made = t },
		}
	}
	if err := store.Create(spec); err != nil { //nolint:contextcheck // the job is stopped below
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
		store.Stop(jobID) // its output is no longer shown
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

// openStore returns a job store in a new private directory below tempDir, named after pattern, and a function that
// closes the store and removes all of it. Without a Fetcher in cfg it opens one in cacheDir.
func openStore(
	tempDir, pattern, cacheDir string, actions action.Config, cfg job.Config,
) (store *job.Store, closeAll func() error, err error) {
	dir, err := os.MkdirTemp(tempDir, pattern)
	if err != nil {
		return nil, nil, fmt.Errorf("create temporary directory: %w", err)
	}
	ends := []func() error{func() error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove temporary directory: %w", err)
		}
		return nil
	}}
	closeAll = func() (err error) {
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, end())
		}
		return err
	}
	cfg.Language = action.New(actions)
	if cfg.Fetcher == nil {
		mirrors, err := actions.Mirrors()
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		components, err := fetch.New(fetch.Config{Dir: cacheDir, Mirrors: mirrors})
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		ends = append(ends, components.Close)
		cfg.Fetcher = components
	}
	cfg.Dir, cfg.Init = dir, &proc.Init{Room: walls.Spec{Level: walls.Off}, OrphanDir: dir}
	ends = append(ends, cfg.Init.Close)
	if store, err = job.New(cfg); err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	ends = append(ends, store.Close)
	return store, closeAll, nil
}
