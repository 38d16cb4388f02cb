package engine

import (
	"fmt"
	"time"

	"github.com/stepmux/stepmux/remote/steps"
)

// Status is how far a step or a job has come.
type Status int

// The values of Status.
const (
	Running   Status = iota + 1
	Success          // it ended well
	Failure          // it did not
	Cancelled        // it was stopped
	Skipped          // the step never ran
)

func (s Status) String() string {
	switch s {
	case Running:
		return "running"
	case Success:
		return "success"
	case Failure:
		return "failure"
	case Cancelled:
		return "cancelled"
	case Skipped:
		return "skipped"
	default:
		return fmt.Sprintf("Status(%d)", int(s))
	}
}

// StepResult is what is known of one step.
type StepResult struct {
	Name   string
	Status Status
	// ExitCode is the process's exit status; 128 plus the signal's number when a signal ended it; 127
	// when there was no such program, 126 when it could not be executed. 0 when no process told.
	ExitCode int
	// Message says why the step did not succeed. If its process did not, it ends in "exit status N".
	Message string
	// Started and Finished are zero if that has not happened.
	Started, Finished time.Time
}

// Result is how a job ended.
type Result struct {
	// Status is Success, Failure or Cancelled.
	Status Status
	// ExitCode and Message are those of the step that failed the job. The code is 0 if none did, also
	// when the job was stopped.
	ExitCode int
	Message  string
	// TimedOut tells that the job's time was up. The Status is Failure then.
	TimedOut bool
	// Steps has all steps of the job in their order, also those that never ran.
	Steps []StepResult
}

// NotRun returns the results of def's steps before any of them has run.
func NotRun(def *steps.Definition) []StepResult {
	results := make([]StepResult, len(def.Steps))
	for i, s := range def.Steps {
		results[i] = StepResult{Name: s.Name, Status: Skipped}
	}
	return results
}
