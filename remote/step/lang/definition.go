package lang

// The limits of a text. They are checked while it is read.
const (
	// MaxText bounds a YAML text, in bytes.
	MaxText = 1 << 20
	// MaxSteps bounds the number of steps of a job.
	MaxSteps = 10_000
	// MaxArg bounds an argument and a variable ("NAME=value"), in bytes: it is the longest string that Linux passes to
	// a program (MAX_ARG_STRLEN less the final NUL).
	MaxArg = 128<<10 - 1
	// MaxEnv bounds the sum of the variables of one env, in bytes.
	MaxEnv = 1 << 20
)

// The values of when, the condition about earlier steps.
const (
	OnSuccess = "on_success" // all earlier steps succeeded: the default
	OnFailure = "on_failure" // an earlier step failed
	Always    = "always"     // always, also after the job was cancelled
)
