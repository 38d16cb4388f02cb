package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/steps"
)

const (
	defaultGrace       = 10 * time.Second
	defaultAlwaysLimit = 5 * time.Minute
)

// Config says what to run.
type Config struct {
	Definition *steps.Definition
	// Env is the job's environment: over what the operating system says, below what the definition and
	// its steps set.
	Env map[string]string
	// RunnerEnv is the runner's own environment, of which few variables reach a step. If nil, that of
	// this process.
	RunnerEnv []string

	// OrphanDir is removed when this process dies before the job has ended and nobody holds a lock on
	// it. May be empty.
	OrphanDir string

	// Timeout stops the job when it has run for so long. If zero, never.
	Timeout time.Duration
	// Grace is the time a step has between SIGTERM and SIGKILL when Timeout ends it. If zero, 10 s.
	Grace time.Duration
	// AlwaysLimit is the time that the steps which always run have, together, after the job was
	// stopped. If zero, 5 min.
	AlwaysLimit time.Duration

	// Observe is told each change of a step, one after the other. May be nil.
	Observe func(StepResult)
}

// Place is where a job runs, and where what it writes goes.
type Place struct {
	// WorkDir is where steps run. It is absolute and exists.
	WorkDir string
	// ScriptDir is a private directory for the texts of scripts. It exists, and has no entry "script".
	ScriptDir string
	// Stdout and Stderr get what the steps write, byte for byte.
	Stdout, Stderr io.Writer
}

// Runner runs one job, once. Its methods may be called from any goroutine.
type Runner struct {
	cfg     Config
	maxKept int // maxKept; less in tests

	// Only Run's goroutine uses the following.
	place    Place
	results  []StepResult
	failed   *StepResult     // the step that failed the job
	cut      bool            // a step did not run, or not to its end, because the job was stopped
	kept     []*proc.Process // whose background processes live until the end
	after    context.Context // for steps that run although the job was stopped; nil before the first
	cancel   context.CancelFunc
	closeErr error // of those that were closed before

	mu sync.Mutex // guards the following
	// stopped says why the job was stopped; nil if it was not.
	stopped *stop
	// current is the process of the step that runs, if Stop is to end it.
	current *proc.Process
}

// New returns a Runner for cfg. It does nothing before Run.
func New(cfg Config) *Runner {
	if cfg.RunnerEnv == nil {
		cfg.RunnerEnv = os.Environ()
	}
	if cfg.Grace == 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.AlwaysLimit == 0 {
		cfg.AlwaysLimit = defaultAlwaysLimit
	}
	if cfg.Observe == nil {
		cfg.Observe = func(StepResult) {}
	}
	return &Runner{cfg: cfg, maxKept: maxKept}
}

// Run runs the job at place and returns how it ended, when none of its processes is left. When ctx ends it
// kills them at once and runs no further step; the Result's message is the cause. It must be called
// once. A panic while it runs is the job's failure.
func (r *Runner) Run(ctx context.Context, place Place) (result Result) {
	r.place = place
	r.results = NotRun(r.cfg.Definition)
	defer func() {
		if p := recover(); p != nil {
			for i := range r.results {
				if r.results[i].Status == Running {
					r.results[i].Status = Failure
				}
			}
			result = r.result(ctx)
			result.Status, result.Message = Failure, fmt.Sprintf("internal error of the step runner: %v", p)
		}
		if r.cancel != nil {
			r.cancel()
		}
		if err := r.end(); err != nil && result.Status == Success {
			result.Status, result.Message = Failure, fmt.Sprintf("end the processes of the job: %v", err)
		}
	}()
	if r.cfg.Timeout > 0 {
		timer := time.AfterFunc(r.cfg.Timeout, func() {
			r.stop(&stop{message: fmt.Sprintf("timeout: the job ran for longer than %v", r.cfg.Timeout), timedOut: true}, r.cfg.Grace)
		})
		defer timer.Stop()
	}
	for i, s := range r.cfg.Definition.Steps {
		if stepCtx, due := r.due(ctx, s.When); due {
			r.runStep(stepCtx, s, &r.results[i])
		} else {
			r.cfg.Observe(r.results[i])
		}
	}
	return r.result(ctx)
}

// due reports whether a step with when shall run now, and the context for that.
func (r *Runner) due(ctx context.Context, when steps.When) (context.Context, bool) {
	wanted := when == steps.Always || (when == steps.OnFailure) == (r.failed != nil)
	switch {
	case !wanted:
		return nil, false
	case r.stopping() == nil && ctx.Err() == nil:
		return ctx, true
	case when == steps.Always && ctx.Err() == nil:
		if r.after == nil {
			r.after, r.cancel = context.WithTimeoutCause(ctx, r.cfg.AlwaysLimit,
				fmt.Errorf("timeout: after the job was stopped, its last steps ran for longer than %v", r.cfg.AlwaysLimit))
		}
		if r.after.Err() == nil {
			return r.after, true
		}
	}
	r.cut = true
	return nil, false
}

// result sums up. A job was stopped if that kept a step from running, or from running to its end.
func (r *Runner) result(ctx context.Context) Result {
	res := Result{Status: Success, Steps: r.results}
	if r.failed != nil {
		res.Status, res.ExitCode, res.Message = Failure, r.failed.ExitCode, r.failed.Message
	}
	if !r.cut {
		return res
	}
	res.Status, res.ExitCode = Cancelled, 0
	switch stopped := r.stopping(); {
	case stopped == nil:
		res.Message = context.Cause(ctx).Error()
	case stopped.timedOut:
		res.Status, res.Message, res.TimedOut = Failure, stopped.message, true
	default:
		res.Message = stopped.message
	}
	return res
}

// closeLast ends what the step that ran last has left.
func (r *Runner) closeLast() {
	last := len(r.kept) - 1
	r.closeErr = errors.Join(r.closeErr, r.kept[last].Close())
	r.kept = r.kept[:last]
}

// end ends what all steps left.
func (r *Runner) end() error {
	errs := make([]error, len(r.kept)+1)
	errs[len(r.kept)] = r.closeErr
	var wg sync.WaitGroup
	for i, p := range r.kept {
		wg.Go(func() { errs[i] = p.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
