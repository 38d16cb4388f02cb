package standalone

import (
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Given is a job that is not read from a text, but was before: that of a trace.
type Given struct {
	// Notices are those of [Job].
	Notices []string
	// Source is where the text was from.
	Source     trace.Source
	Definition *pb.Definition
	// Steps is a text that compiles to Definition.
	Steps string
	// Inputs, Vars, Env and MayFail are those of [engine.Config].
	Inputs  map[string]expr.Value
	Vars    []engine.Variable
	Env     map[string]string
	MayFail []string
	// RunnerEnv takes the place of this process's environment, of which few variables reach a step.
	RunnerEnv []string
	// Secrets are texts that are masked as the values of masked variables are.
	Secrets []string
}

// NewJob returns the job g.
func NewJob(g Given) *Job {
	return &Job{
		Notices: g.Notices, definition: g.Definition, steps: g.Steps, inputs: g.Inputs, vars: g.Vars, env: g.Env,
		mayFail: g.MayFail, source: g.Source, runnerEnv: g.RunnerEnv, secrets: g.Secrets,
	}
}
