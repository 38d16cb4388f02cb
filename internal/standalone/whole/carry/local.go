package carry

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
)

// Local runs jobs on this machine, each in a directory of its own.
type Local struct {
	// Config is that of each job, but for its directories, its timeout and its output.
	standalone.Config
	// CachesDir is the directory with the caches of the project. Without it there are no caches.
	CachesDir string
	// Git are the repositories of the jobs. Without them the jobs have no .git, unless their archives have it.
	Git *Repositories
	// Run runs a job. If nil, standalone.Run does.
	Run func(ctx, abort context.Context, j *standalone.Job, cfg standalone.Config) (*standalone.Report, error)
}

// Execute implements [Executor].
func (l Local) Execute(ctx, abort context.Context, a *Attempt) (_ *Outcome, err error) {
	a.Started()
	dir, err := os.MkdirTemp(a.TempDir, "job-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	for i, files := range a.Archives {
		if err := files.Unpack(ctx, dir); err != nil {
			return nil, fmt.Errorf("unpack archive %d, of the project or of a needed job: %w", i+1, err)
		}
		if i > 0 {
			continue
		}
		back, err := l.Git.give(ctx, dir)
		if err != nil {
			return nil, err
		}
		defer back()
		if err := l.restore(ctx, dir, a); err != nil {
			return nil, err
		}
	}
	cfg := l.Config
	cfg.WorkDir, cfg.TempDir, cfg.Timeout = dir, a.TempDir, a.Timeout
	cfg.Stdout, cfg.Stderr, cfg.Observe = a.Stdout, a.Stderr, nil
	run := l.Run
	if run == nil {
		run = standalone.Run
	}
	report, err := run(ctx, abort, a.Job, cfg)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // nothing is taken any more
		return nil, context.Cause(ctx)
	}
	if err := l.save(ctx, dir, a, report); err != nil {
		return nil, err
	}
	return a.Gather(ctx, dir, report)
}
