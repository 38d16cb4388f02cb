package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxKept bounds how many finished steps keep their process, an init, until the end of the job, because they may have
// left hidden background processes. An init costs memory even if the step has left none. Beyond maxKept, only steps
// whose process group is not empty keep theirs.
const maxKept = 64

// Exit codes of a step whose program could not be run, as in a shell.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// runCommand runs a step that is a command, or a script.
func (r *Runner) runCommand(ctx context.Context, g *frame, res *StepResult) outcome {
	r.announce(res, Command)
	env := r.environment(g)
	cmd, argv, err := r.command(g, env)
	defer r.clean(g)
	if err != nil {
		return concluded(proc.Exit{}, err)
	}
	g.files.wanted = g.files.wanted || g.v0() // its environment has the paths of the files
	if err := g.files.create(); err != nil {
		return failed(err)
	}
	if err := r.describe(g, res, &cmd); err != nil {
		return failed(err)
	}
	o, cut := r.carryOut(ctx, g, res, cmd, argv, env)
	given := r.collect(g, res)
	if !cut {
		o = g.blame(r.forgive(g, res, o))
	}
	if o.status != Success {
		return o
	}
	if given != nil {
		return failed(given)
	}
	maps.Copy(r.exports, res.Exports)
	return o
}

// carryOut runs a process of a step, and reports it. cut says that it did not end by itself.
func (r *Runner) carryOut(
	ctx context.Context, g *frame, res *StepResult, cmd proc.Command, argv []expr.Value, env layer,
) (o outcome, cut bool) {
	r.tell(func(e Events) { e.CommandStarting(res, &cmd, argv, env) })
	exit, expired, stopped, err := r.runProcess(ctx, g, res, cmd)
	r.tell(func(e Events) { e.CommandEnded(res, known(exit, err), expired != nil) })
	switch {
	case stopped != nil:
		r.cuts++
		return stopped.outcome(exit.Code), true
	case err != nil && ctx.Err() != nil:
		r.cuts++
		return outcome{status: Cancelled, why: context.Cause(ctx).Error()}, true
	case expired != nil:
		expired.extend(r.cfg.AlwaysLimit)
		return exited(exit.Code, expired.why.Error()), true
	}
	return concluded(exit, err), false
}

// concluded returns the outcome of a process that ended by itself.
func concluded(exit proc.Exit, err error) outcome {
	switch {
	case err != nil:
		o := exited(startExitCode(err), err.Error())
		o.system = proc.MachineFailed(err)
		return o
	case exit.Limit != "":
		return exited(exit.Code, "exec: "+exit.Limit)
	case exit.Signal != 0:
		return exited(exit.Code, fmt.Sprintf("exec: ended by signal %d (%v)", int(exit.Signal), exit.Signal))
	case exit.Code != 0:
		return exited(exit.Code, "exec")
	default:
		return outcome{status: Success}
	}
}

// exited returns the failure of a process with an exit code. Its message ends with "exit status N": callers read the
// code from it.
func exited(code int, why string) outcome {
	if code != 0 {
		why += fmt.Sprintf(": exit status %d", code)
	}
	return outcome{status: Failure, code: code, why: why}
}

// collect reads the outputs and exports from the files of the step, also after a failure. The error says why a file is
// invalid.
func (r *Runner) collect(g *frame, res *StepResult) error {
	outputs, warnings, outErr := g.files.outputs(g.def.GetSpec(), g.dialect())
	exports, dropped, expErr := g.files.exports(g.v0(), r.unsafe)
	if err := r.hideValues(outputs); err != nil {
		return err
	}
	r.taint(outputs)
	r.taint(exports)
	if err := r.give(size(outputs) + size(exports)); err != nil {
		return err
	}
	res.Outputs, res.Exports = outputs, exports
	res.addWarnings(warnings)
	res.addWarnings(dropped)
	return together(outErr, expErr)
}

// dialect returns the dialect of the command: that of its definition or, for a definition in a list, that of the list.
func (f *frame) dialect() pb.Definition_Dialect {
	for f.outer != nil {
		f = f.outer
	}
	return f.def.GetDialect()
}

func (f *frame) v0() bool { return f.dialect() == pb.Definition_v0 }

// clean removes the files of a step. If some cannot be removed, they are removed with ScriptDir.
func (r *Runner) clean(g *frame) {
	if g.files.wanted {
		r.scripts.remove(g.files.name)
	}
	if g.isScript() {
		r.scripts.remove(scriptName)
	}
}

// scriptName is the name of the file with the script of a step.
const scriptName = "script"

// command returns the process of g's definition with the environment env. argv are the values at the beginning of its
// arguments.
func (r *Runner) command(g *frame, env layer) (cmd proc.Command, argv []expr.Value, err error) {
	cmd = proc.Command{
		Dir: r.place.WorkDir, Env: environ(env), Stdout: r.place.Stdout, Stderr: r.place.Stderr, Visible: r.place.WorkDir,
	}
	switch {
	case g.isScript():
		return cmd, nil, r.script(g, &cmd)
	case g.builtin != "":
		argv, err := r.helper(g, &cmd)
		return cmd, argv, err
	}
	e := g.def.GetExec()
	for i, arg := range e.GetCommand() {
		v, err := r.text(g, lang.PartExec, arg, fmt.Sprintf("command, argument %d", i))
		if err != nil {
			return cmd, nil, err
		}
		cmd.Argv, argv = append(cmd.Argv, v.Text()), append(argv, v)
	}
	base := r.place.WorkDir
	if g.v0() {
		base = g.dir
	}
	dir, err := r.text(g, lang.PartExec, e.GetWorkDir(), "work_dir")
	if err != nil {
		return cmd, nil, err
	}
	if cmd.Dir = dir.Text(); !filepath.IsAbs(cmd.Dir) {
		cmd.Dir = filepath.Join(base, cmd.Dir)
	}
	return cmd, argv, nil
}

// script makes cmd run a script. The shell reads its text from a file, as if the text stood in the file's place, so
// that its length has no limit.
func (r *Runner) script(g *frame, cmd *proc.Command) error {
	wanted := ""
	if v, there := g.inputs[inputShell]; there {
		wanted = v.Text()
	}
	sh, err := shell(wanted, cmd.Dir, cmd.Env)
	if err != nil {
		return err
	}
	file := r.scripts.join(scriptName)
	cmd.Argv = []string{sh}
	if g.builtin != lang.ScriptStep {
		cmd.Argv = append(cmd.Argv, "-e")
		if filepath.Base(sh) == "bash" {
			cmd.Argv = append(cmd.Argv, "-o", "pipefail")
		}
	}
	if g.inputs["debug_trace"].Truthy() {
		cmd.Argv = append(cmd.Argv, "-x")
	}
	source, err := wire.Quote(".", file)
	if err != nil {
		return fmt.Errorf("name the script's file: %w", err)
	}
	cmd.Argv = append(cmd.Argv, "-c", source, filepath.Base(sh))
	return r.scripts.write(scriptName, g.script, "script")
}

// describe adds the environment variables and the description of the blueprint's dialect.
func (r *Runner) describe(g *frame, res *StepResult, cmd *proc.Command) error {
	if !g.v0() {
		return nil
	}
	r.tell(func(e Events) { e.VariablesRead(describing(nil)) })
	for name, kind := range map[string]string{
		"OUTPUT_FILE": "output", "STEP_RUNNER_OUTPUT": "output", "ENV_FILE": "export", "STEP_RUNNER_ENV": "export",
		"STEP_JSON": "step.json",
	} {
		cmd.Env = append(cmd.Env, name+"="+g.files.path(kind)) // the last entry of a name counts
	}
	about, err := json.Marshal(map[string]any{
		"version": 1, "inputs": g.inputs, "job": description(r.knownVars(g)),
		"step":        map[string]string{"name": res.Name, "component": g.dir},
		"output_file": g.files.path("output"), "export_file": g.files.path("export"),
	})
	if err != nil {
		return fmt.Errorf("describe step: %w", err)
	}
	return g.files.in.write(g.files.entry("step.json"), string(about), "step.json")
}

// runProcess starts a step's process and waits for its end. When ctx ends, it kills all processes of the step. It
// returns the time limit that was reached and the stop that ended the process, if any. The error says why there is no
// exit status.
func (r *Runner) runProcess(
	ctx context.Context, g *frame, res *StepResult, cmd proc.Command,
) (proc.Exit, *limit, *stop, error) {
	p, err := r.cfg.Start(ctx, cmd)
	if err != nil {
		return proc.Exit{}, nil, nil, err
	}
	r.tell(func(e Events) { e.CommandStarted(res, p.PID()) })
	r.kept = append(r.kept, p)
	var pause *time.Timer // between SIGINT and SIGTERM
	r.attach(func(s *stop) {
		left := time.Until(s.killAt)
		if !g.interrupt || pause != nil || left <= 0 {
			p.Stop(left)
			return
		}
		p.Interrupt()
		pause = time.AfterFunc(left*3/4, func() { p.Stop(time.Until(s.killAt)) })
	})
	l := g.limits.next()
	var expired atomic.Pointer[time.Time] // the time at which the process is killed
	if l != nil {
		timer := time.AfterFunc(time.Until(l.at), func() {
			at := time.Now().Add(r.cfg.Grace)
			expired.Store(&at)
			p.Stop(r.cfg.Grace)
		})
		defer timer.Stop()
	}
	exit, err := p.Wait(ctx)
	killAt := func() (at time.Time) { // zero unless p is being ended
		if s := r.stopping(); s != nil && r.after == nil {
			return s.killAt
		}
		if end := expired.Load(); end != nil {
			return *end
		}
		return at
	}
	isEnded := err == nil && !killAt().IsZero()
	if isEnded {
		p.AwaitGroup(ctx, killAt)
	}
	if err != nil || isEnded || len(r.kept) > r.maxKept && p.GroupEnded(ctx) {
		r.closeErr = errors.Join(r.closeErr, p.Close())
		r.kept = r.kept[:len(r.kept)-1]
	}
	if expired.Load() == nil {
		l = nil
	}
	stopped := r.release()
	if pause != nil {
		pause.Stop()
	}
	return exit, l, stopped, err
}

// known returns exit, of a process that ended with err, or nil if its exit is unknown.
func known(exit proc.Exit, err error) *proc.Exit {
	if err != nil && exit == (proc.Exit{}) {
		if exit.Code = startExitCode(err); exit.Code == 0 {
			return nil
		}
	}
	return &exit
}

// startExitCode returns the exit code that a shell would return for err, or 0.
func startExitCode(err error) int {
	switch {
	case errors.Is(err, proc.ErrNotFound), errors.Is(err, errNoShell):
		return exitNotFound
	case errors.Is(err, proc.ErrNotExecutable), errors.Is(err, proc.ErrTooLarge):
		return exitNotExecutable
	default:
		return 0
	}
}
