package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/steps"
)

// groupPause is the pause between looks at whether a process group that was told to end has ended.
const groupPause = 5 * time.Millisecond

// maxKept is how many steps are kept until the end of the job because they may have left something in
// the background, out of sight. Each holds a process, its shim, even if it has left nothing, so of the
// steps beyond these only those are kept whose process group lives on.
const maxKept = 64

// Exit codes of a step whose program could not be run, as a shell has them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// runStep runs one step to its end and records that in res.
func (r *Runner) runStep(ctx context.Context, s steps.Step, res *StepResult) {
	res.Status, res.Started = Running, time.Now()
	r.cfg.Observe(*res)
	exit, err := r.runProcess(ctx, s)
	res.Finished = time.Now()
	switch stopped := r.release(); {
	case stopped != nil:
		r.cut = true
		res.Status, res.ExitCode = Cancelled, exit.Code
		if stopped.timedOut {
			res.Status = Failure
		}
		res.Message = fmt.Sprintf("step %q: %s", s.Name, stopped.message)
	case err != nil && ctx.Err() != nil:
		r.cut = true
		res.Status = Cancelled
		res.Message = fmt.Sprintf("step %q: %v", s.Name, context.Cause(ctx))
	default:
		res.conclude(exit, err)
	}
	if res.Status == Failure && r.failed == nil {
		r.failed = res
	}
	r.cfg.Observe(*res)
}

// conclude records how a step ended by itself. What fails is worded so that "exit status N" comes last:
// callers take the code from there.
func (res *StepResult) conclude(exit proc.Exit, err error) {
	why := ""
	switch {
	case err != nil:
		res.ExitCode = startExitCode(err)
		why = fmt.Sprintf(": %v", err)
	case exit.Signal != 0:
		res.ExitCode = exit.Code
		why = fmt.Sprintf(": ended by signal %d (%v)", int(exit.Signal), exit.Signal)
	case exit.Code != 0:
		res.ExitCode = exit.Code
	default:
		res.Status = Success
		return
	}
	res.Status = Failure
	res.Message = fmt.Sprintf("step %q%s", res.Name, why)
	if res.ExitCode != 0 {
		res.Message += fmt.Sprintf(": exit status %d", res.ExitCode)
	}
}

// command returns what runs s. If that is a script, it is in the file script, which the caller removes.
func (r *Runner) command(s steps.Step) (cmd proc.Command, script string, err error) {
	cmd = proc.Command{
		Dir:       r.place.WorkDir,
		Env:       Environ(r.cfg.RunnerEnv, r.cfg.Env, r.cfg.Definition.Env, s.Env),
		Stdout:    r.place.Stdout,
		Stderr:    r.place.Stderr,
		OrphanDir: r.cfg.OrphanDir,
	}
	if s.Exec != nil {
		if cmd.Dir = s.Exec.WorkDir; !filepath.IsAbs(cmd.Dir) {
			cmd.Dir = filepath.Join(r.place.WorkDir, cmd.Dir)
		}
		cmd.Argv = s.Exec.Command
		return cmd, "", nil
	}
	sh, err := shell(lookup(cmd.Env, "PATH"), cmd.Dir)
	if err != nil {
		return cmd, "", err
	}
	script = filepath.Join(r.place.ScriptDir, "script")
	cmd.Argv = []string{sh, script}
	return cmd, script, writeScript(script, s.Script)
}

// runProcess starts the step's process and waits for its end. The error says why there is no exit
// status. When ctx ends, all processes of the step are killed.
func (r *Runner) runProcess(ctx context.Context, s steps.Step) (proc.Exit, error) {
	cmd, script, err := r.command(s)
	if err != nil {
		return proc.Exit{}, err
	}
	if script != "" {
		defer func() { _ = os.Remove(script) }() // it goes with ScriptDir at the latest
	}
	p, err := proc.Start(ctx, cmd)
	if err != nil {
		return proc.Exit{}, err
	}
	r.kept = append(r.kept, p)
	r.attach(p)
	exit, err := p.Wait(ctx)
	switch {
	case err != nil, r.awaitGroup(ctx, p):
		r.closeLast()
	case len(r.kept) > r.maxKept && groupEnded(p):
		r.closeLast()
	}
	return exit, err
}

// awaitGroup waits, if Stop is ending p, until nothing is left of p's process group or the grace is
// over, and reports whether Stop did. The shell of a script dies of SIGTERM at once, while what it was
// running uses the grace to clean up.
func (r *Runner) awaitGroup(ctx context.Context, p *proc.Process) bool {
	s := r.stopping()
	if s == nil || r.after != nil {
		return false
	}
	// Nothing tells when a process group ends.
	tick := time.NewTicker(groupPause)
	defer tick.Stop()
	for time.Now().Before(s.killAt) && !groupEnded(p) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true
		}
		s = r.stopping()
	}
	return true
}

// groupEnded reports whether nothing is left of p's process group.
func groupEnded(p *proc.Process) bool { return errors.Is(unix.Kill(-p.PID(), 0), unix.ESRCH) }

// attach makes p the process that Stop ends, unless it belongs to a step that runs because the job was
// stopped. If Stop came before, it ends p now.
func (r *Runner) attach(p *proc.Process) {
	if r.after != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = p
	if r.stopped != nil {
		p.Stop(time.Until(r.stopped.killAt))
	}
}

// release ends what attach began. It returns why the job was stopped if that ended the step.
func (r *Runner) release() *stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	attached := r.current != nil
	r.current = nil
	if !attached || r.stopped == nil {
		return nil
	}
	s := *r.stopped
	return &s
}

// startExitCode is the exit code a shell would have given for err, or 0.
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
