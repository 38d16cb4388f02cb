// Package client stands for the requests to a step runner.
package client

import "time"

// RunRequest asks for a job.
type RunRequest struct {
	Id                string
	Timeout           *time.Duration
	WorkDir, BuildDir string
	Env               map[string]string
	Steps             string
	Variables         []Variable
}

// Variable is a variable of it.
type Variable struct {
	Key, Value   string
	File, Masked bool
}

// State is how a job stands.
type State int

// The states.
const (
	StateSuccess State = iota
	StateCancelled
)

// String returns an empty text.
func (State) String() string { return "" }

// ErrorKind is why a job failed.
type ErrorKind int

// The reasons.
const (
	ErrorUnknown ErrorKind = iota
	ErrorInternal
	ErrorStepFailure
	ErrorCancelled
	ErrorTimeout
)

// Status is how a job stands, and why.
type Status struct {
	State     State
	ErrorKind ErrorKind
	Message   string
}
