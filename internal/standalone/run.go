package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Config says where and how a job runs.
type Config struct {
	// WorkDir is the directory of the steps. It is an absolute path and exists.
	WorkDir string
	// TempDir is the parent of a private directory that is removed at the end. If empty, it is the system's.
	TempDir string
	// Fetcher gets steps that are not local. If nil, Run uses a [fetch.Store] in CacheDir.
	Fetcher component.Getter
	// CacheDir keeps fetched steps. If empty, [component.DefaultDir].
	CacheDir string
	// Actions says how GitHub Actions run.
	Actions action.Config
	// Services registers the job at the services for actions. It returns them, and a function for the end of the job,
	// which reports whether the job has made artifacts there. May be nil.
	Services func() (_ engine.Services, end func() (made bool), err error)
	// Timeout bounds the job. If zero, 24 h.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when the job is stopped. If zero, 10 s. If negative, none.
	Grace time.Duration

	// Policy has settings that replace those of the job.
	Policy engine.Policy

	// Trace asks for a trace of the job in the report. May be nil.
	Trace *Trace
	// Version is the version of this program, for the trace.
	Version string

	// Stdout and Stderr get the output of the steps. If one of them fails, the job is stopped.
	Stdout, Stderr io.Writer
	// Observe is called with each change of a step, in order with the output: after the output of earlier steps, and
	// before that of the step itself. May be nil.
	Observe func(engine.StepResult)
}

// Trace asks for a trace of a job.
type Trace struct {
	// File is the path for the trace, which is also written if the job fails. An older file is replaced completely or
	// not at all. If empty, no file is written.
	File string
	// Salt is for the HMACs of masked values. If nil, a new one.
	Salt *mask.Salt
}

// jobID names the only job of a store.
const jobID = "local"

// Run runs a job to its end. When ctx ends, the job gets SIGTERM, its grace and SIGKILL, and then only steps with when:
// always run. When abort ends, the job is killed. The report says how the job ended. An error says that this machine
// could not run the job to its end, or could not show all of its output; see [ErrStuck]. When Run returns, all
// processes and directories of the job are gone.
func Run(ctx, abort context.Context, j *Job, cfg Config) (report *Report, err error) {
	if cfg.Observe == nil {
		cfg.Observe = func(engine.StepResult) {}
	}
	if cfg.Services != nil {
		services, end, err := cfg.Services()
		if err != nil {
			return nil, err
		}
		defer func() {
			if made := end(); report != nil {
				report.Passing = made
			}
		}()
		j = new(*j)
		j.Services = services
	}
	store, closeStore, err := openStore(cfg.TempDir, "stepmux-local-", cfg.CacheDir, cfg.Actions,
		job.Config{Fetcher: cfg.Fetcher, Version: cfg.Version, Policy: cfg.Policy})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }() //nolint:contextcheck // close the store even if ctx has ended
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
	showErr := show(alive, abort, follower, cfg)
	if showErr != nil {
		store.Stop(jobID) // its output is no longer shown
	}
	stat, result, err := follower.Wait(alive)
	if err != nil {
		return nil, err
	}
	report = newReport(stat, result, cfg.WorkDir)
	if cfg.Trace != nil {
		file, traceErr := follower.Trace()
		switch {
		case traceErr == nil:
			file.Close()
		case !errors.Is(traceErr, job.ErrNoTrace): // ErrNoTrace: there was no room for the job; the report says so
			showErr = errors.Join(showErr, traceErr)
		}
		report.Trace = made
	}
	return report, showErr
}

// openStore returns a job store in a new private directory below tempDir. The directory's name begins with pattern. The
// returned function closes the store and removes the directory. Without a Fetcher in cfg, openStore opens one in
// cacheDir.
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
	cfg.Dir, cfg.Init = dir, &proc.Init{Room: isolate.Spec{Level: vmconfig.Off}, OrphanDir: dir}
	ends = append(ends, cfg.Init.Close)
	if store, err = job.New(cfg); err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	ends = append(ends, store.Close)
	return store, closeAll, nil
}
