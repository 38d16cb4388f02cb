package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/steps"
)

const (
	defaultGrace       = 10 * time.Second
	defaultAlwaysLimit = 5 * time.Minute
)

// Config says what to run, and where.
type Config struct {
	Definition *steps.Definition
	// Env is the job's environment: over what the operating system says, below what the definition and
	// its steps set.
	Env map[string]string
	// RunnerEnv is the runner's own environment, of which few variables reach a step. If nil, that of
	// this process.
	RunnerEnv []string

	// WorkDir is where steps run. It is absolute and exists.
	WorkDir string
	// ScriptDir is a private directory for the texts of scripts. It exists, and has no entry "script".
	ScriptDir string
	// OrphanDir is removed when this process dies before the job has ended and nobody holds a lock on
	// it. May be empty.
	OrphanDir string

	// Stdout and Stderr get what the steps write, byte for byte.
	Stdout, Stderr io.Writer

	// Timeout stops the job when it has run for so long. If zero, never.
	Timeout time.Duration
	// Grace is the time a step has between SIGTERM and SIGKILL when Timeout ends it. If zero, 10 s.
	Grace time.Duration
	// AlwaysLimit is the time that the steps which always run have, together, after the job was
	// stopped. If zero, 5 min.
	AlwaysLimit time.Duration

	// Starts bounds how many processes are started at the same time. May be shared by runners. If nil,
	// there is no bound.
	Starts *semaphore.Weighted

	// Observe is told each change of a step, one after the other. May be nil.
	Observe func(StepResult)
}

// Runner runs one job, once. Its methods may be called from any goroutine.
type Runner struct {
	cfg Config
	// Only Run's goroutine uses the following.
	results []StepResult
	failed  *StepResult     // the step that failed the job
	kept    []*proc.Process // whose background processes live until the end
	after   context.Context // for steps that run although the job was stopped; nil before the first
	cancel  context.CancelFunc

	mu sync.Mutex // guards the following
	// stopped says why the job was stopped; nil if it was not.
	stopped *stop
	// current is the process of the step that runs, if Stop is to end it.
	current *proc.Process
}

// stop is why and how a job was stopped.
type stop struct {
	message  string
	timedOut bool
	grace    time.Duration
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
	return &Runner{cfg: cfg}
}

// Run runs the job and returns how it ended, when none of its processes is left. When ctx ends it
// kills them at once and runs no further step; the Result's message is the cause. It must be called
// once. A panic while it runs is the job's failure.
func (r *Runner) Run(ctx context.Context) (result Result) {
	r.results = make([]StepResult, len(r.cfg.Definition.Steps))
	for i, s := range r.cfg.Definition.Steps {
		r.results[i] = StepResult{Name: s.Name, Status: Skipped}
	}
	defer func() {
		if p := recover(); p != nil {
			result = r.result(ctx)
			result.Status, result.Message = Failure, fmt.Sprintf("internal error of the step runner: %v", p)
		}
		if r.cancel != nil {
			r.cancel()
		}
		if err := r.closeKept(); err != nil && result.Status == Success {
			result.Status, result.Message = Failure, fmt.Sprintf("end background processes: %v", err)
		}
	}()
	if r.cfg.Timeout > 0 {
		timer := time.AfterFunc(r.cfg.Timeout, func() {
			r.stop(stop{message: fmt.Sprintf("timeout: the job ran for longer than %v", r.cfg.Timeout), timedOut: true, grace: r.cfg.Grace})
		})
		defer timer.Stop()
	}
	for i, s := range r.cfg.Definition.Steps {
		stepCtx, due := r.due(ctx, s.When)
		if !due {
			r.cfg.Observe(r.results[i])
			continue
		}
		r.runStep(stepCtx, s, &r.results[i])
	}
	return r.result(ctx)
}

// due reports whether a step that runs when shall run now, and the context for that.
func (r *Runner) due(ctx context.Context, when steps.When) (context.Context, bool) {
	r.mu.Lock()
	stopped := r.stopped != nil
	r.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, false
	case stopped && when == steps.Always:
		if r.after == nil {
			r.after, r.cancel = context.WithTimeoutCause(ctx, r.cfg.AlwaysLimit,
				fmt.Errorf("timeout: after the job was stopped, its last steps ran for longer than %v", r.cfg.AlwaysLimit))
		}
		return r.after, r.after.Err() == nil
	case stopped:
		return nil, false
	case r.failed != nil:
		return ctx, when != steps.OnSuccess
	default:
		return ctx, when != steps.OnFailure
	}
}

// result sums up the steps. The job was stopped if that kept a step from ending or from running.
func (r *Runner) result(ctx context.Context) Result {
	res := Result{Status: Success, Steps: r.results}
	if r.failed != nil {
		res.Status, res.ExitCode, res.Message = Failure, r.failed.ExitCode, r.failed.Message
	}
	cut := false
	for i, s := range r.results {
		skipped := s.Status == Skipped && r.failed == nil && r.cfg.Definition.Steps[i].When != steps.OnFailure
		cut = cut || skipped || s.Status == Cancelled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !cut && !(r.stopped != nil && r.stopped.timedOut && r.failed != nil):
	case r.stopped != nil && r.stopped.timedOut:
		res.Status, res.ExitCode, res.Message, res.TimedOut = Failure, 0, r.stopped.message, true
	case r.stopped != nil:
		res.Status, res.ExitCode, res.Message = Cancelled, 0, r.stopped.message
	case ctx.Err() != nil:
		res.Status, res.ExitCode, res.Message = Cancelled, 0, context.Cause(ctx).Error()
	}
	return res
}

// closeKept ends what steps have left in the background.
func (r *Runner) closeKept() error {
	errs := make([]error, len(r.kept))
	var wg sync.WaitGroup
	for i, p := range r.kept {
		wg.Go(func() { errs[i] = p.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
