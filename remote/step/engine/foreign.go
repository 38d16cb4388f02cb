package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Language runs the steps of one job that are written in another language: actions, and the built-in step
// [lang.GitHubJobStep]. The goroutine of [Runner.Run] makes all calls, and waits for them.
type Language interface {
	// Run runs a step to its end. It sets the Outputs, the Exports and the Steps of call.Result. The call stays valid
	// until Finish has returned.
	Run(ctx context.Context, call *Call) Result
	// Finish runs the stages that steps have left for the end of the job. It returns the result of the first stage that
	// failed, or nil.
	Finish(ctx context.Context) *StepResult
}

// Failed returns the result of a step that failed with err.
func Failed(err error) Result { return failed(err).public() }

func (o outcome) public() Result {
	return Result{Status: o.status, ExitCode: o.code, Message: o.why, System: o.system}
}

// outcome returns the part of r that every step has.
func (r *Result) outcome() outcome { return outcome{r.Status, r.ExitCode, r.Message, r.System, false} }

// Call is a step of another language, and gives it the parts of the job that it can use.
type Call struct {
	// Reference is the reference of an action. It is nil for a built-in step.
	Reference *pb.Reference
	// Inputs are the values of the inputs. For a built-in step they include the defaults.
	Inputs map[string]expr.Value
	// Env is the whole environment for processes of the step.
	Env map[string]expr.Value
	// Result is the state of the step.
	Result *StepResult
	// Place is the place where the job runs. Its streams mask the secrets.
	Place Place

	r *Runner
	g *frame
}

// language returns the other language of the job.
func (r *Runner) language() (Language, error) {
	if r.cfg.Language == nil {
		return nil, errors.New("GitHub Actions are not supported by this program; use a step or a script")
	}
	if r.foreign == nil {
		r.foreign = r.cfg.Language()
	}
	return r.foreign, nil
}

// isForeign reports whether the step of the frame is one of another language.
func (f *frame) isForeign() bool { return f.action != nil || f.builtin == lang.GitHubJobStep }

// runForeign runs a step of another language.
func (r *Runner) runForeign(ctx context.Context, g *frame, res *StepResult) outcome {
	r.announce(res, Sequence)
	l, err := r.language()
	if err != nil {
		return failed(err)
	}
	before := r.cuts
	o := l.Run(ctx, &Call{
		Reference: g.action, Inputs: g.inputs, Env: r.environment(g), Result: res, Place: r.place, r: r, g: g,
	})
	switch stopped := r.stopping(); {
	case r.cuts > before && stopped != nil && !g.after:
		return stopped.outcome(o.ExitCode)
	case r.cuts > before && ctx.Err() != nil:
		return outcome{status: Cancelled, why: context.Cause(ctx).Error()}
	}
	if err := r.receive(res); err != nil && o.Status == Success {
		return failed(err)
	}
	if o.Status == Success {
		maps.Copy(r.exports, res.Exports)
	}
	return o.outcome()
}

// receive counts the results of a step, and marks those that contain secrets. It leaves out those that are too many.
func (r *Runner) receive(res *StepResult) error {
	r.taint(res.Outputs)
	r.taint(res.Exports)
	err := r.give(size(res.Outputs) + size(res.Exports))
	if err != nil {
		res.Outputs, res.Exports = nil, nil
	}
	n := r.given + len(res.Summary)
	for i := range res.Annotations {
		a := &res.Annotations[i]
		n += len(a.Message) + len(a.Title) + len(a.File)
	}
	if n > maxResults {
		res.Summary, res.Annotations = "", nil
		res.warn("the summary and the annotations are left out: the job has too many")
		return err
	}
	r.given = n
	return err
}

// finishForeign lets the other language end the job.
func (r *Runner) finishForeign(ctx context.Context) {
	if r.foreign == nil {
		return
	}
	r.finishing = true
	if failed := r.foreign.Finish(ctx); failed != nil && r.top.failed == nil {
		r.top.failed = failed
	}
}

// Begin reports that a part of the step runs. res is its result; it must be in the Steps of the step's result, or of a
// part's. with describes the part.
func (c *Call) Begin(res *StepResult, kind Kind, with Prepared) error {
	if err := c.r.admit(res); err != nil {
		return err
	}
	res.Started = time.Now()
	c.r.tell(func(e Events) { e.StepPrepared(res, with) })
	c.r.announce(res, kind)
	return nil
}

// Found reports where the definition of the step, or of a part, is. Its Definition names the parts.
func (c *Call) Found(res *StepResult, found Found) {
	res.Source = found.Source
	c.r.tell(func(e Events) { e.StepFound(res, found) })
}

// End records the end of a part of the step.
func (c *Call) End(res *StepResult, o Result) {
	if err := c.r.receive(res); err != nil && o.Status == Success {
		o = Failed(err)
	}
	c.r.finish(res, o.outcome())
}

// Keep counts n more bytes that the step leaves for later ones, beside its outputs and exports. The error says that the
// job has too many; then the step must not leave them.
func (c *Call) Keep(n int) error { return c.r.give(n) }

// Skip records that a part of the step does not run.
func (c *Call) Skip(res *StepResult) { c.r.cfg.Observe(*res) }

// List counts the n parts of a list that is about to run. The error says that the job has too many.
func (c *Call) List(n int) error { return c.r.list(n) }

// Proceed returns the context for the next part. It returns false if the job was stopped and always is not set: then
// the part must not run.
func (c *Call) Proceed(ctx context.Context, always bool) (context.Context, bool) {
	when := lang.OnSuccess
	if always {
		when = lang.Always
	}
	next, _, due := c.r.due(ctx, &frame{after: c.g.after}, when)
	return next, due
}

// Stopped reports whether the job was stopped.
func (c *Call) Stopped() bool { return c.r.stopping() != nil }

// JobFailed reports whether a step of the job has failed.
func (c *Call) JobFailed() bool { return c.r.top != nil && c.r.top.failed != nil }

// Fetch returns the component of ref. It is valid until the job ends.
func (c *Call) Fetch(ctx context.Context, ref *pb.Reference) (*component.Component, error) {
	if c.r.cfg.Fetcher == nil {
		return nil, errors.New("this program fetches no actions; use one of the project, such as ./action")
	}
	got, err := c.r.fetching(ctx, c.g, ref)
	if err != nil && (ctx.Err() != nil || c.r.after == nil && c.Stopped()) {
		c.r.cuts++
	}
	return got, err
}

// Locate returns the directory of path, which is relative to the definition that the step stands in. root is the
// directory that the definition must not leave, or empty.
func (c *Call) Locate(path string) (dir, root string, err error) {
	dir, err = c.g.locate(path)
	return dir, c.g.root, err
}

// Open opens a file or a directory that steps may have made, see [Config].
func (c *Call) Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return c.r.cfg.Open(path, flag, perm)
}

// Services are those for the job's actions.
func (c *Call) Services() Services { return c.r.cfg.Services }

// Variables are the job variables that the step may know. Call Reading with those that it reads.
func (c *Call) Variables() map[string]expr.Value { return c.r.knownVars(c.g) }

// Reading reports that the step reads these job variables.
func (c *Call) Reading(names ...string) { c.r.tell(func(e Events) { e.VariablesRead(names) }) }

// Hide masks a secret from now on. Texts that are too short are not masked.
func (c *Call) Hide(secret string) error { return c.r.hide(secret) }

// Masked returns a text for people, with secrets masked.
func (c *Call) Masked(text string) string { return c.r.cfg.Secrets.Message(text) }

// FilesDir returns the name of a directory for the files of a part. The directory does not exist yet.
//
// That name, and the names in Path, Mkdir, WriteFile, ReadFile and Remove, are relative to [Place.ScriptDir]. Use only
// these methods there: a step may move the directory or put links into it, and these methods stay inside it all the
// same.
func (c *Call) FilesDir() string {
	c.r.serial++
	return fmt.Sprintf("step-%d", c.r.serial)
}

// Path returns the path of a file or a directory, for a process of the step.
func (c *Call) Path(name string) string { return c.r.scripts.join(name) }

// Mkdir makes a directory that only its owner can use.
func (c *Call) Mkdir(name string) error { return c.r.scripts.mkdir(name) }

// MakeFiles makes a directory with empty files that only their owner can use, for a part. The part ends with
// [Call.RemoveFiles].
func (c *Call) MakeFiles(name string, files []string) error { return c.r.makeFiles(name, files) }

// RemoveFiles removes the files of MakeFiles, and all other files in their directory.
func (c *Call) RemoveFiles(name string, files []string) { c.r.retire(name, files) }

// WriteFile writes text to a new file that only its owner can read. It replaces an older file of that name.
func (c *Call) WriteFile(name, text string) error {
	return c.r.scripts.write(name, text, filepath.Base(name))
}

// ReadFile reads a file of at most 8 MiB that a step has written. It is safe even if the step has put a link or a
// device there.
func (c *Call) ReadFile(name string) ([]byte, error) { return c.r.scripts.read(name) }

// Remove removes a file, or a directory and all below it. If some cannot be removed, they are removed with ScriptDir.
func (c *Call) Remove(name string) { c.r.scripts.remove(name) }

// Tidy runs a process in the place of the step's processes, such as one that cleans up after them. It is in no result,
// and its exit status does not count. When ctx ends, the process is killed. It may run at the same time as Exec.
func (c *Call) Tidy(ctx context.Context, cmd proc.Command) error {
	p, err := c.r.cfg.Start(ctx, cmd)
	if err != nil {
		return err
	}
	_, err = p.Wait(ctx)
	return errors.Join(err, p.Close())
}

// IsTraced reports whether the job is traced.
func (c *Call) IsTraced() bool { return c.r.cfg.Events != nil }

// Version reports the version of the program that Exec has run for res.
func (c *Call) Version(res *StepResult, version string) {
	c.r.tell(func(e Events) { e.VersionFound(res, version) })
}

// UnsafeExport reports whether a variable changes how every later program runs. No step may export it.
func (c *Call) UnsafeExport(name string) bool {
	return slices.Contains(unsafeExports, name) && c.r.unsafe != allowUnsafe
}

// Exec runs a process of the step, or of its part res, to its end, with the environment vars. A deadline that is not
// zero bounds it; label names it in the message. When the job is stopped, the process group gets SIGINT, after three
// quarters of the grace SIGTERM, and at its end SIGKILL.
func (c *Call) Exec(
	ctx context.Context, res *StepResult, cmd proc.Command, vars map[string]string, deadline time.Time, label string,
) Result {
	r, env := c.r, layer{}
	for name, value := range vars {
		v, err := expr.New(value)
		if err != nil {
			return Failed(fmt.Errorf("the variable %.64q: %w", name, err))
		}
		if outer, there := c.Env[name]; there && outer.Text() == value {
			v = outer
		}
		env[name] = v
	}
	cmd.Env, cmd.Visible = environ(env), r.place.WorkDir
	argv := make([]expr.Value, 0, len(cmd.Argv))
	for _, arg := range cmd.Argv {
		v, err := expr.New(arg)
		if err != nil {
			return Failed(fmt.Errorf("an argument: %w", err))
		}
		argv = append(argv, v)
	}
	g := *c.g
	g.interrupt = true
	if r.finishing {
		g.limits = nil // post steps run after the limits of the enclosing steps
	}
	if !deadline.IsZero() {
		g.limits = &limit{outer: g.limits, at: deadline, why: fmt.Errorf("timeout: %s", label)}
	}
	o, _ := r.carryOut(ctx, &g, res, cmd, argv, env)
	return o.public()
}
