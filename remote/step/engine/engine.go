package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
)

const (
	// maxCalls bounds how deep steps can call each other.
	maxCalls = 32
	// maxRun bounds the steps that one job can run, steps of steps included.
	maxRun = 10_000
	// maxListed bounds the steps in all lists that a job runs.
	maxListed = 10 * maxRun
)

// Config is a job, and how to run it.
type Config struct {
	// Definition is the job's list of steps. If its spec requires inputs, they must be in Inputs.
	Definition *pb.Definition
	// Places finds the places of the Definition's expressions, for errors. If nil, errors have no places.
	Places *lang.Locator
	// Env is the environment of all steps. It overrides the operating system's variables; exports and the env of the
	// definition and of steps override it.
	Env map[string]string
	// Inputs are the values of the definition's inputs. Missing inputs have their defaults.
	Inputs map[string]expr.Value
	// Tolerant accepts unknown keys in the files of steps, and makes them warnings of those steps.
	Tolerant bool
	// MayFail names steps that may fail: the job goes on as if they had succeeded. It applies to the job's own steps,
	// not to the steps that they call.
	MayFail []string
	// Marks is the token of the marks in the output, see [lang.Mark]. If empty, it has no marks.
	Marks string
	// MaskPrefixes are beginnings of tokens: the rest of a word that begins so is masked.
	MaskPrefixes []string
	// Vars are the job's variables.
	Vars []Variable
	// RunnerEnv is the runner's own environment. If nil, that of this process. Policy says which of its variables
	// reach a step. If Policy is not valid, nothing passes.
	RunnerEnv []string
	Policy    Policy

	// Fetcher gets steps that are not local, with the credentials in the job's variables. If nil, such steps fail. Run
	// does not close it.
	Fetcher component.Getter
	// Language makes the runner of the job's actions. If nil, actions fail.
	Language func() Language
	// Services are those for the job's actions. The zero value is none.
	Services Services
	// Program is the absolute path of the program whose commands the built-in steps run. If empty, this program.
	Program string
	// Secrets are masked in the output and in messages. Run adds the secrets that it finds. If nil, Run begins with an
	// empty Set.
	Secrets *mask.Set

	// Start starts the job's processes. If nil, [proc.Start].
	Start func(context.Context, proc.Command) (*proc.Process, error)
	// Open opens a file or a directory for reading that steps may have made, by its absolute path as the steps see it.
	// If nil, [os.OpenFile].
	Open func(path string, flag int, perm fs.FileMode) (*os.File, error)

	// Timeout stops the job after this time. If zero, never.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL for a step that a timeout ends. If zero, 10 s.
	Grace time.Duration
	// AlwaysLimit bounds the time of all steps together that run although the job was stopped. If zero, 5 min.
	AlwaysLimit time.Duration

	// Observe is called with each change of a step, one call after the other. May be nil.
	Observe func(StepResult)
	// Events gets more events than Observe. May be nil.
	Events Events
}

// Services says where actions find the services for artifacts and caches.
type Services struct {
	// URL is the address of the services, without a slash at its end.
	URL string
	// Token is the token of the job. It is a secret, which the caller masks.
	Token string
	// Server is the URL of a Gitea server that has the artifacts, with the same Token. It may be empty. Relayed is the
	// server's own URL if Server is a way through the port of URL.
	Server, Relayed string
}

// Place has the directories and the output streams of a job.
type Place struct {
	// WorkDir is the directory in which steps run. It is absolute and exists.
	WorkDir string
	// ScriptDir is a private directory for scripts and for the files that steps read and write. It exists, and has no
	// entries named script, vars, step-1, step-2 and so on.
	ScriptDir string
	// Script is ScriptDir, open. If nil, Run opens ScriptDir by its path. The caller closes it.
	Script *os.File
	// Stdout and Stderr get the output of the steps, with secrets masked. They must be safe for concurrent use. Nil
	// discards the output.
	Stdout, Stderr io.Writer
}

// Runner runs one job, once. Its methods may be called from any goroutine.
type Runner struct {
	cfg     Config
	maxKept int // maxKept; less in tests

	// Only Run's goroutine uses the following.
	place     Place
	scripts   scriptDir // of place
	spare     string    // a directory with the empty files of an earlier part, see makeFiles; or empty
	loader    loader
	varValues map[string]expr.Value
	vars, job expr.Value // the values of these names in expressions

	credentials component.Credentials
	components  []*component.Component // released at the end

	osEnv, requestEnv layer
	unsafe            unsafeExport // how exports such as LD_PRELOAD are treated
	exports           layer        // what the steps have exported so far

	results []StepResult
	top     *frame // of the job's steps
	count   int    // steps that were run
	serial  int    // number of the last step that had files
	given   int    // size of the outputs, exports and saved states of all steps, in bytes
	located int    // errors of expressions with a place, see maxLocated
	listed  int    // steps of the lists that it ran
	cuts    int    // steps that did not run, or were cut short, because the job was stopped

	foreign   Language        // nil before its first step
	finishing bool            // it runs the stages that its steps have left for the end of the job
	kept      []*proc.Process // processes of finished steps; their background processes live until the end
	after     context.Context // the context of steps that run although the job was stopped; nil before the first
	cancel    context.CancelFunc
	closeErr  error // of processes that were closed earlier

	mu sync.Mutex // guards the following
	// stopped says why the job was stopped. It is nil as long as it was not.
	stopped *stop
	// current ends the process or the fetch of the step that runs. It is nil if Stop must not end it.
	current func(*stop)
}

// New returns a Runner for cfg. It does nothing before Run.
func New(cfg Config) *Runner {
	if cfg.RunnerEnv == nil {
		cfg.RunnerEnv = os.Environ()
	}
	if cfg.Secrets == nil {
		cfg.Secrets = &mask.Set{}
	}
	cfg.Secrets.Prefixes = cfg.MaskPrefixes
	if cfg.Start == nil {
		cfg.Start = proc.Start
	}
	if cfg.Open == nil {
		cfg.Open = os.OpenFile
	}
	cfg.Program = cmp.Or(cfg.Program, ownProgram)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.AlwaysLimit = cmp.Or(cfg.AlwaysLimit, 5*time.Minute)
	if cfg.Observe == nil {
		cfg.Observe = func(StepResult) {}
	}
	return &Runner{cfg: cfg, maxKept: maxKept, loader: loader{tolerant: cfg.Tolerant}}
}

// Run runs the job at place, and returns its result once all of its processes are gone. When ctx ends, Run kills them
// at once and runs no further step; the Result's message is the cause. Call it once. A panic while it runs fails the
// job.
func (r *Runner) Run(ctx context.Context, place Place) (result Result) {
	stdout, stderr := r.masked(place.Stdout), r.masked(place.Stderr)
	if r.cfg.Marks != "" {
		stderr = stdout // so that the marks stand between the output of the steps
	}
	place.Stdout, place.Stderr = stdout, stderr
	r.place = place
	var pass passing
	pass, r.unsafe, _ = r.cfg.Policy.parse()
	r.osEnv = osLayer(r.cfg.RunnerEnv, pass)
	r.tell(func(e Events) { e.JobStarted(place, r.osEnv) })
	r.results = NotRun(r.cfg.Definition)
	r.listed = len(r.results)
	var err error
	if r.scripts, err = openScriptDir(place); err != nil {
		result = r.refuse(fmt.Errorf("open the directory for scripts: %w", err))
		result.Invalid, result.System = false, true
		return result
	}
	defer func() {
		if p := recover(); p != nil {
			abort(r.results)
			result = r.result(ctx)
			message := fmt.Sprintf("internal error of the step runner: %v", p)
			result.Status, result.Message, result.System = Failure, r.cfg.Secrets.Message(message), true
		}
		if r.cancel != nil {
			r.cancel()
		}
		err := r.end()
		for _, c := range r.components {
			c.Release()
		}
		if err != nil {
			err = fmt.Errorf("end the processes of the job: %w", err)
		}
		if closeErr := together(stdout.Close(), stderr.Close()); err == nil && closeErr != nil {
			err = fmt.Errorf("write the last output: %w", closeErr)
		}
		r.scripts.remove(varsDir)
		_ = r.scripts.root.Close() // nothing was written to it
		if err != nil && result.Status == Success {
			result.Status, result.Message, result.System = Failure, err.Error(), true
		}
	}()
	if r.cfg.Timeout > 0 {
		timer := time.AfterFunc(r.cfg.Timeout, func() {
			r.stop(&stop{message: fmt.Sprintf("timeout: the job ran for longer than %v", r.cfg.Timeout), timedOut: true},
				r.cfg.Grace)
		})
		defer timer.Stop()
	}
	f, err := r.begin(ctx)
	if err != nil {
		return r.refuse(err)
	}
	r.top = f
	r.sequence(ctx, f, r.results)
	r.finishForeign(ctx)
	return r.result(ctx)
}

// begin makes the frame of the job's steps, and finds the mistakes that are visible before the first step.
func (r *Runner) begin(ctx context.Context) (*frame, error) {
	r.requestEnv, r.exports = layer{}, layer{}
	for name, value := range r.cfg.Env {
		r.requestEnv[name] = text(value)
	}
	values := make(map[string]string, len(r.cfg.Vars))
	for _, v := range r.cfg.Vars {
		values[v.Key] = v.Value
	}
	r.credentials = component.FromVariables(func(name string) string { return values[name] })
	var err error
	if r.varValues, err = r.variables(); err != nil {
		return nil, err
	}
	if r.vars, err = expr.New(r.varValues); err == nil {
		r.job, err = jobContext(r.varValues)
	}
	if err != nil {
		return nil, fmt.Errorf("job variables: %w", err)
	}
	def := r.cfg.Definition
	if len(def.GetSteps()) == 0 {
		return nil, errors.New("the job has no steps")
	}
	f := &frame{def: def, places: r.cfg.Places, dir: r.place.WorkDir, ran: map[string]*StepResult{}}
	f.restrict(def.GetSpec())
	if f.inputs, err = lang.Bind(def.GetSpec(), r.cfg.Inputs); err != nil {
		return nil, err
	}
	if err := r.hideValues(f.inputs); err != nil {
		return nil, err
	}
	set, err := r.evalEnv(f, def.GetEnv())
	if err != nil {
		return nil, err
	}
	if err := r.precheck(ctx, f); err != nil {
		return nil, err
	}
	return f.with(set, nil), nil
}

// refuse returns the result of a job that cannot run.
func (r *Runner) refuse(err error) Result {
	for i := range r.results {
		r.cfg.Observe(r.results[i])
	}
	system := systemFailed(err)
	message := r.cfg.Secrets.Message(err.Error())
	return Result{Status: Failure, Invalid: !system, System: system, Message: message, Steps: r.results}
}

// due reports whether a step of f with when must run now. It returns the context for that. after says that the step
// runs although the job was stopped.
func (r *Runner) due(ctx context.Context, f *frame, when string) (_ context.Context, after, due bool) {
	wanted := when == lang.Always || (when == lang.OnFailure) == (f.failed != nil)
	switch {
	case !wanted:
		return nil, false, false
	case ctx.Err() == nil && (f.after || r.stopping() == nil):
		return ctx, f.after, true
	case when == lang.Always && ctx.Err() == nil:
		if r.after == nil {
			r.after, r.cancel = context.WithTimeoutCause(ctx, r.cfg.AlwaysLimit,
				fmt.Errorf("timeout: after the job was stopped, its last steps ran for longer than %v", r.cfg.AlwaysLimit))
		}
		if r.after.Err() == nil {
			return r.after, true, true
		}
	}
	r.cuts++
	return nil, false, false
}

// result returns the result of the job. It counts as stopped if the stop kept a step from running to its end.
func (r *Runner) result(ctx context.Context) Result {
	res := Result{Status: Success, Exports: r.exports, Steps: r.results}
	if r.top != nil && r.top.failed != nil {
		failed := r.top.failed
		res.Status, res.ExitCode, res.Message, res.System = Failure, failed.ExitCode, failed.Message, failed.System
	}
	if r.cuts == 0 {
		if res.Status == Success && r.top != nil {
			var err error
			if res.Outputs, _, err = r.sequenceOutputs(r.top); err != nil {
				res.Status, res.Message = Failure, r.cfg.Secrets.Message(err.Error())
			}
		}
		return res
	}
	res.Status, res.ExitCode, res.System = Cancelled, 0, false
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

// end ends the background processes of all steps.
func (r *Runner) end() error {
	errs := make([]error, len(r.kept))
	var wg sync.WaitGroup
	for i, p := range r.kept {
		wg.Go(func() { errs[i] = p.Close() })
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), r.closeErr)
}
