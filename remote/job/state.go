package job

import (
	"fmt"
	"time"
)

// State is how far a job has come.
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

// Stat is what is known of a job at one moment.
type Stat struct {
	ID    string
	State State
	// Started is set always, Finished once the State is final.
	Started, Finished time.Time
	// ExitCode is that of the step that failed the job; 0 if none did.
	ExitCode int
	// Message says why the job did not succeed.
	Message string
	// TimedOut tells that the job's time was up.
	TimedOut bool
	// System tells that the machine failed the job, or the step runner itself, and not what the job does; also of a
	// job that was Cancelled by nobody but Shutdown.
	System bool
	// Stdout and Stderr are how many bytes of each stream there are.
	Stdout, Stderr int64
}
