package job

import (
	"fmt"
	"time"
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

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Succeeded:
		return "succeeded"
	case Failed:
		return "failed"
	case Cancelled:
		return "cancelled"
	default:
		return fmt.Sprintf("State(%d)", int(s))
	}
}

// Stat is a snapshot of a job.
type Stat struct {
	ID    string
	State State
	// Started is always set, Finished once the State is final.
	Started, Finished time.Time
	// ExitCode is the exit code of the step that failed the job, else 0.
	ExitCode int
	// Message says why the job did not succeed.
	Message string
	// TimedOut says that the job reached its timeout.
	TimedOut bool
	// System says that the machine or the step runner failed the job, and not the job's own commands. It is also set if
	// Shutdown, and no caller, has cancelled the job.
	System bool
	// Stdout and Stderr are the lengths of the streams.
	Stdout, Stderr int64
}
