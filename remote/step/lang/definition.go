package lang

// Limits of what a text may hold. They are checked while it is read.
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

// The values of when: after which course of events a step runs.
const (
	OnSuccess = "on_success" // all steps before it succeeded: the default
	OnFailure = "on_failure" // one before it failed
	Always    = "always"     // in any case, also after the job was cancelled
)
