package lang

// The limits of a text. They are checked while it is read.
const (
	// MaxText is the longest YAML text, in bytes.
	MaxText = 1 << 20
	// MaxSteps is the largest number of steps of a job.
	MaxSteps = 10_000
	// MaxArg is the longest argument and the longest variable ("NAME=value"), in bytes: the longest string that Linux
	// passes to a program (MAX_ARG_STRLEN less the final NUL).
	MaxArg = 128<<10 - 1
	// MaxEnv is the largest sum of the variables of one env, in bytes.
	MaxEnv = 1 << 20
)

// The values of when, the condition on the steps before.
const (
	OnSuccess = "on_success" // all earlier steps succeeded: the default
	OnFailure = "on_failure" // an earlier step failed
	Always    = "always"     // always, also after the job was cancelled
)
