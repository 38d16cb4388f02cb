package engine

import (
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Events is told how a job goes on, in order. The goroutine of Run makes the calls and waits for them. Do not change
// the arguments. The address of a StepResult identifies the step: it is the same in Result.Steps.
type Events interface {
	// JobStarted comes first. osEnv is the part of the runner's environment that steps may see.
	JobStarted(place Place, osEnv map[string]expr.Value)
	// VariablesRead names job variables that an expression, or the description of a step, reads. A job may lack them.
	VariablesRead(names []string)
	// ConditionEvaluated tells the value of a step's if.
	ConditionEvaluated(step *StepResult, value bool)
	// ComponentFetched comes once for each component. It is there until Run returns.
	ComponentFetched(c *component.Component)
	// StepFound tells where the definition of a step is. A step whose definition stands in its place has no such event.
	StepFound(step *StepResult, found Found)
	// StepPrepared tells the inputs and the environment of a step, before it runs.
	StepPrepared(step *StepResult, with Prepared)
	// CommandStarting tells the command before it starts. cmd.Argv begins with the texts of argv, and cmd.Env was
	// made of env: these values know which texts are sensitive.
	CommandStarting(step *StepResult, cmd *proc.Command, argv []expr.Value, env map[string]expr.Value)
	// CommandStarted tells the process of the command.
	CommandStarted(step *StepResult, pid int)
	// CommandEnded tells the end of the command, whether it started or not. timedOut tells that a time limit ended it.
	CommandEnded(step *StepResult, exit proc.Exit, timedOut bool)
	// VersionFound tells the version of the program that the command of a step ran, as the program itself tells it.
	VersionFound(step *StepResult, version string)
	// StepEnded comes last, when step is final.
	StepEnded(step *StepResult)
}

// Found is the definition of a step, and where it is.
type Found struct {
	Definition *pb.Definition
	// Builtin is the name of a step that is built in. Only Definition is set beside it.
	Builtin string
	// Dir is the directory of the definition, File its file there, and Text the content of that.
	Dir, File string
	Text      []byte
	// Root is the directory that references of the definition must not leave. If empty, they may.
	Root string
	// Source is set if the step was fetched just now. Cached tells that it was in the cache.
	Source *component.Source
	Cached bool

	warnings []string // of its text
	places   *lang.Locator
}

// Prepared has the inputs and the environment of a step.
type Prepared struct {
	Definition *pb.Definition
	// Script tells that the step runs a script.
	Script bool
	// Inputs are the final ones; nil if the definition of the step stands in its place.
	Inputs map[string]expr.Value
	// Env is the environment that the reference and the definition of the step set, the innermost last.
	Env []map[string]expr.Value
	// FilesDir is the directory of the step's output files; empty for a list of steps.
	FilesDir string
}

// tell calls fn with the Events of the job, if it has any.
func (r *Runner) tell(fn func(Events)) {
	if r.cfg.Events != nil {
		fn(r.cfg.Events)
	}
}
