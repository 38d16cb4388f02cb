package managerv1

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// BuildJSON is a Build as stepmux builds --output json and the status page show it.
type BuildJSON struct {
	ID        string            `json:"id"`
	Phase     string            `json:"phase"`
	Instance  string            `json:"instance,omitempty"`
	File      string            `json:"file,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"` // of the VM, while it is queued
	Submitted *time.Time        `json:"submitted,omitempty"`
	Started   *time.Time        `json:"started,omitempty"`
	Ended     *time.Time        `json:"ended,omitempty"`
	Canceled  bool              `json:"canceled,omitempty"`
	Status    string            `json:"status,omitempty"` // success or failed, once it has ended
	Reason    string            `json:"reason,omitempty"`
	ExitCode  *int32            `json:"exit_code,omitempty"`
	Error     string            `json:"error,omitempty"`
	Left      []string          `json:"left,omitempty"`
	Artifacts int64             `json:"artifacts_bytes,omitempty"` // of the archive
	Trace     int64             `json:"trace_bytes,omitempty"`
	Attempt   int32             `json:"attempt,omitempty"` // counts how often it was lost and ran again
	// Connect and FirstOutput are the times from the slot to a step runner that listens and to the job's first output.
	Connect     float64 `json:"connect_s,omitempty"`
	FirstOutput float64 `json:"first_output_s,omitempty"`
	// Warnings are about the job's scripts.
	Warnings []*Warning `json:"warnings,omitempty"`
	// Pipeline and Job are those of a build of a pipeline.
	Pipeline string `json:"pipeline,omitempty"`
	Job      string `json:"job,omitempty"`
}

// ScriptFailure is the reason of a build whose script failed.
const ScriptFailure = "script_failure"

// JSON returns the build in the form for JSON.
func (b *Build) JSON() BuildJSON {
	j := BuildJSON{
		ID: b.GetId(), Phase: b.GetPhase().String(), Instance: b.GetInstance(), File: b.GetStepsFile(),
		Labels: b.GetLabels(), Submitted: optionalTime(b.GetSubmitted()), Started: optionalTime(b.GetStarted()),
		Ended: optionalTime(b.GetEndedAt()), Canceled: b.GetCanceled(), Attempt: b.GetAttempt(),
		Connect: b.GetConnect().AsDuration().Seconds(), FirstOutput: b.GetFirstOutput().AsDuration().Seconds(),
		Warnings: b.GetWarnings(), Pipeline: b.GetPipeline(), Job: b.GetJob(),
	}
	r := b.GetResult()
	if r == nil {
		return j
	}
	j.Status, j.Reason, j.Error, j.Left = "success", r.GetReason(), r.GetMessage(), r.GetLeft()
	j.Artifacts, j.Trace = r.GetArtifacts(), r.GetTrace()
	if j.Reason != "" {
		j.Status = "failed"
	}
	if j.Reason == "" || j.Reason == ScriptFailure && r.GetExitCode() != 0 {
		j.ExitCode = &r.ExitCode
	}
	return j
}

func optionalTime(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.AsTime())
}
