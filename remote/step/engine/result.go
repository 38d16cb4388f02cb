package engine

import (
	"fmt"
	"slices"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
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

var statusNames = [...]string{
	Running: "running", Success: "success", Failure: "failure", Cancelled: "cancelled", Skipped: "skipped",
}

func (s Status) String() string { return statusNames[s] }

// Kind is the kind of a step.
type Kind int

// The values of Kind.
const (
	Unknown  Kind = iota // it never ran, or could not be found
	Command              // an exec, or a script
	Sequence             // more steps
)

// StepResult is the state of one step.
type StepResult struct {
	Name string
	// Path has the names of the steps that lead to this one, itself the last.
	Path []string
	// Kind is set once the step starts, if its definition was found.
	Kind   Kind
	Status Status
	// ExitCode is the process's exit status; 128 plus the signal's number when a signal ended it; 127
	// when there was no such program, 126 when it could not be executed. 0 when no process told. Of a
	// sequence it is that of the step that failed it.
	ExitCode int
	// System tells that this machine or the step runner failed, not the step. The Status is Failure then.
	System bool
	// Message says why the step did not succeed. If its process did not, it ends in "exit status N".
	Message string
	// Warnings are problems that did not fail the step.
	Warnings []string
	// Started and Finished are zero if that has not happened.
	Started, Finished time.Time
	// Source is the fetched source of the step, if there is one. Do not change it.
	Source *component.Source
	// Outputs and Exports are set also if the step failed after it wrote them. Do not change them.
	Outputs, Exports map[string]expr.Value
	// Steps are those of a sequence. Observe gets results without them.
	Steps []StepResult
}

// maxWarnings is the most warnings that a step keeps.
const maxWarnings = 20

// warn adds a warning.
func (s *StepResult) warn(format string, args ...any) {
	s.addWarnings([]string{fmt.Sprintf(format, args...)})
}

func (s *StepResult) addWarnings(list []string) {
	for _, w := range list {
		switch {
		case len(s.Warnings) < maxWarnings:
			s.Warnings = append(s.Warnings, w)
		case len(s.Warnings) == maxWarnings:
			s.Warnings = append(s.Warnings, "there are more warnings")
		}
	}
}

// Result is how a job ended.
type Result struct {
	// Status is Success, Failure or Cancelled.
	Status Status
	// ExitCode and Message are those of the step that failed the job. The code is 0 without such a step, also when
	// the job was stopped.
	ExitCode int
	Message  string
	// TimedOut tells that the job's time was up. The Status is Failure then.
	TimedOut bool
	// Invalid tells that the job was found to be wrong before its first step. The Status is Failure then.
	Invalid bool
	// System tells that this machine or the step runner failed, not the job. The Status is Failure then.
	System bool
	// Outputs are those of the job, Exports all that its steps exported and that was passed on.
	Outputs, Exports map[string]expr.Value
	// Steps has all steps of the job in their order, also those that never ran.
	Steps []StepResult
}

// NotRun returns the results of def's steps before any of them has run.
func NotRun(def *pb.Definition) []StepResult { return notRun(def, nil) }

func notRun(def *pb.Definition, path []string) []StepResult {
	results := make([]StepResult, len(def.GetSteps()))
	for i, s := range def.GetSteps() {
		results[i] = StepResult{Name: s.GetName(), Path: append(slices.Clip(path), s.GetName()), Status: Skipped}
	}
	return results
}

// abort marks the steps that run as failed.
func abort(results []StepResult) {
	for i := range results {
		if results[i].Status == Running {
			results[i].Status = Failure
		}
		abort(results[i].Steps)
	}
}
