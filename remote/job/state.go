package job

import (
	"time"

	"github.com/stepmux/stepmux/remote/proc"
)

// State is the state of a job.
type State int

// The values of State. All but Running are final.
const (
	Running State = iota + 1
	Succeeded
	Failed
	Cancelled
)

var stateNames = [...]string{Running: "running", Succeeded: "succeeded", Failed: "failed", Cancelled: "cancelled"}

func (s State) String() string { return stateNames[s] }

// Stat is a snapshot of a job.
type Stat struct {
	ID    string
	State State
	// Started is always set, Finished once the State is final.
	Started, Finished time.Time
	// ExitCode is the exit code of the step that failed the job, else 0.
	ExitCode int
	// Message says why the job failed or was cancelled.
	Message string
	// TimedOut says that the job reached its timeout.
	TimedOut bool
	// System says that the machine or the step runner failed the job, and not the job's own commands. It is also set if
	// Shutdown cancelled the job.
	System bool
	// NothingStarted says that none of the job's commands was started, for sure. It is set once the State is final.
	NothingStarted bool
	// ServerFailed says that a step failed because of a server or the network path to it: other machines may fail too.
	ServerFailed bool
	// Isolation is the level at which the job's commands ran, empty if it is unknown. IsolationReason says why it is
	// off although Auto was asked for, or why it is unknown. Both are set once the State is final.
	Isolation, IsolationReason string
	// Usage is the usage of the commands of all jobs so far, not only of this one. It is set once the State is final.
	Usage proc.Usage
	// Outputs is that of the Spec.
	Outputs bool
	// Stdout and Stderr are the lengths of the streams.
	Stdout, Stderr int64
}
