package steps

// Limits of what a job may hold. They are checked while it is read.
const (
	// MaxText is the longest YAML text, in bytes.
	MaxText = 1 << 20
	// MaxSteps is the most steps of one job.
	MaxSteps = 10_000
	// MaxArg is the longest argument and the longest variable ("NAME=value"), in bytes. Linux passes
	// no longer string to a program, whatever the sum (MAX_ARG_STRLEN less the final NUL).
	MaxArg = 128<<10 - 1
	// MaxEnv is the most bytes the variables of one env may have in all.
	MaxEnv = 1 << 20
)

// Definition is a job, ready to run: its steps, in order.
type Definition struct {
	// Env is set for every step. A step's own Env wins.
	Env map[string]string
	// Steps has at least one step; their names differ.
	Steps []Step
}

// Step is one entry of a job. Either Script or Exec is set.
type Step struct {
	// Name identifies the step in its job. It matches [A-Za-z_][A-Za-z0-9_]*.
	Name string
	// When says after which course of events the step runs.
	When When
	// Env is set for this step only.
	Env map[string]string
	// Script is the text of a shell script: for bash or, where there is none, sh. A line that fails
	// does not end it.
	Script string
	// Exec is a command to run without a shell, nil for a script.
	Exec *Exec
}

// Exec is a command.
type Exec struct {
	// Command is the program and its arguments; it is never empty. A program without a slash is looked
	// up in the step's PATH.
	Command []string
	// WorkDir is where it runs, relative to the job's directory. If empty, there.
	WorkDir string
}

// When says after which course of events a step runs.
type When string

// The values of When.
const (
	OnSuccess When = "on_success" // all steps before it succeeded: the default
	OnFailure When = "on_failure" // one before it failed
	Always    When = "always"     // in any case, also after the job was cancelled
)
