package engine

import (
	"fmt"
	"slices"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/annotation"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// Status is the state of a step or a job.
type Status int

// The values of Status.
const (
	Running   Status = iota + 1
	Success          // it succeeded
	Failure          // it failed
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
	// Path has the names of the steps that lead to this one. The last name is its own.
	Path []string
	// Kind is set once the step starts, if its definition was found.
	Kind   Kind
	Status Status
	// ExitCode is the process's exit status; 128 plus the signal's number if a signal ended it; 127 if there was no
	// such program; 126 if it could not be executed; 0 without an exit status. For a sequence it is the code of the
	// step that failed it.
	ExitCode int
	// System says that this machine or the step runner failed, not the step. Then the Status is Failure.
	System bool
	// Server says that System is set because of a server or the network path to it, as far as is known.
	Server bool
	// Message says why the step failed. If its process failed, it ends with "exit status N".
	Message string
	// Warnings are problems that did not fail the step.
	Warnings []string
	// Started and Finished are zero until then.
	Started, Finished time.Time
	// Source is the fetched source of the step, if there is one. Do not change it.
	Source *component.Source
	// Outputs and Exports are also set if the step failed after it wrote them. Do not change them.
	Outputs, Exports map[string]expr.Value
	// Annotations are remarks about files of the project, and Summary is a text in Markdown. Only actions have them.
	Annotations []annotation.Annotation
	Summary     string
	// Steps are the steps of a sequence. The results in Observe do not have them.
	Steps []StepResult
}

// maxWarnings bounds the warnings that a step keeps.
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

// Result is the end of a job, or of a step of another language.
type Result struct {
	// Status is Success, Failure or Cancelled.
	Status Status
	// ExitCode and Message are those of the step that failed the job. The code is 0 if no step did, also if the job was
	// stopped.
	ExitCode int
	Message  string
	// TimedOut says that the job reached its time limit. Then the Status is Failure.
	TimedOut bool
	// Invalid says that a mistake in the job was found before its first step. Then the Status is Failure.
	Invalid bool
	// System says that this machine or the step runner failed, not the job. Then the Status is Failure.
	System bool
	// Outputs are the job's outputs. Exports are all variables that its steps have exported to later ones.
	Outputs, Exports map[string]expr.Value
	// Steps has all steps of the job in their order, even if they did not run.
	Steps []StepResult
}

// NotRun returns the results of def's steps before the first one has run.
func NotRun(def *pb.Definition) []StepResult { return notRun(def, nil) }

func notRun(def *pb.Definition, path []string) []StepResult {
	results := make([]StepResult, len(def.GetSteps()))
	for i, s := range def.GetSteps() {
		results[i] = StepResult{Name: s.GetName(), Path: append(slices.Clip(path), s.GetName()), Status: Skipped}
	}
	return results
}

// abort marks the running steps as failed.
func abort(results []StepResult) {
	for i := range results {
		if results[i].Status == Running {
			results[i].Status = Failure
		}
		abort(results[i].Steps)
	}
}
