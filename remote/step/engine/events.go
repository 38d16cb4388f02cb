package engine

import (
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Events receives the events of a job, in order. The goroutine of Run makes the calls and waits for them. Do not change
// the arguments. The address of a StepResult identifies the step: it is the same in Result.Steps.
type Events interface {
	// JobStarted comes first. osEnv is the part of the runner's environment that steps may see.
	JobStarted(place Place, osEnv map[string]expr.Value)
	// VariablesRead reports the job variables that an expression, or the description of a step, reads. A job may not
	// have them all.
	VariablesRead(names []string)
	// ConditionEvaluated reports the value of a step's if.
	ConditionEvaluated(step *StepResult, value bool)
	// ComponentFetched comes once for each component. The component is valid until Run returns.
	ComponentFetched(c *component.Component)
	// StepFound reports where the definition of a step is. A definition that stands in the step itself has no such
	// event.
	StepFound(step *StepResult, found Found)
	// StepPrepared reports the inputs and the environment of a step, before it runs.
	StepPrepared(step *StepResult, with Prepared)
	// CommandStarting reports the command before it starts. cmd.Argv begins with the texts of argv, and cmd.Env was
	// made from env. These values say which texts are sensitive.
	CommandStarting(step *StepResult, cmd *proc.Command, argv []expr.Value, env map[string]expr.Value)
	// CommandStarted reports the process of the command.
	CommandStarted(step *StepResult, pid int)
	// CommandEnded reports the end of the command, even if it did not start. exit is nil if it is unknown: the command
	// was killed with the job, or could not start. timedOut says that a time limit ended it.
	CommandEnded(step *StepResult, exit *proc.Exit, timedOut bool)
	// VersionFound reports the version of the program that the command of a step ran, by the program's own words.
	VersionFound(step *StepResult, version string)
	// StepEnded comes last, when step is final.
	StepEnded(step *StepResult)
}

// Found is the definition of a step, and where it is.
type Found struct {
	Definition *pb.Definition
	// Builtin is the name of a built-in step. Then only Definition is set as well.
	Builtin string
	// Dir is the directory of the definition, File the name of its file there, and Text the file's content.
	Dir, File string
	Text      []byte
	// Root is the directory that references of the definition must not leave. If empty, there is no such limit.
	Root string
	// Source is set if the step was fetched just now. Cached says that it was in the cache.
	Source *component.Source
	Cached bool

	warnings []string // about its text
	places   *lang.Locator
}

// Prepared has the inputs and the environment of a step.
type Prepared struct {
	Definition *pb.Definition
	// Script says that the step runs a script.
	Script bool
	// Inputs are the final values of the inputs. They are nil if the definition stands in the step itself.
	Inputs map[string]expr.Value
	// Env is the environment that the reference and the definition of the step set, the innermost last.
	Env []map[string]expr.Value
	// FilesDir is the directory of the step's output files; empty for a list of steps.
	FilesDir string
}

// tell calls fn with the Events of the job, if the job has them.
func (r *Runner) tell(fn func(Events)) {
	if r.cfg.Events != nil {
		fn(r.cfg.Events)
	}
}
