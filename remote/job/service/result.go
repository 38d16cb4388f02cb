package service

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
)

var stepStatus = [...]pb.StepResult_Status{
	engine.Running:   pb.StepResult_running,
	engine.Success:   pb.StepResult_success,
	engine.Failure:   pb.StepResult_failure,
	engine.Cancelled: pb.StepResult_cancelled,
	engine.Skipped:   pb.StepResult_skipped,
}

var jobStatus = [...]pb.JobState_JobStatus{
	job.Running:   pb.JobState_running,
	job.Succeeded: pb.JobState_suceeded, //nolint:misspell // the published spelling
	job.Failed:    pb.JobState_failed,
	job.Cancelled: pb.JobState_cancelled,
}

// stepResult returns r as a message, with the steps below it. Of the step's definition it has the name only: the caller
// has the rest, which may be secret.
func stepResult(r engine.StepResult) *pb.StepResult {
	result := &pb.StepResult{
		Step: &pb.Step{Name: r.Name}, Path: r.Path, Status: stepStatus[r.Status], ExitCode: int32(r.ExitCode),
		StartTime: timestamp(r.Started), FinishedTime: timestamp(r.Finished),
		Message: valid(r.Message), Outputs: outputsOf(r.Outputs), Exports: outputsOf(r.Exports),
	}
	for _, w := range r.Warnings {
		result.Warnings = append(result.Warnings, valid(w))
	}
	for _, s := range r.Steps {
		result.ChildrenStepResults = append(result.ChildrenStepResults, stepResult(s))
	}
	return result
}

// fit returns m. If m would be too large for a message, it leaves out the outputs and exports.
func fit(m *pb.FollowResponse) *pb.FollowResponse {
	if proto.Size(m) > maxMessage {
		strip(m.GetResult())
		m.GetResult().Warnings = append(m.GetResult().GetWarnings(),
			"the outputs and exports are left out here: they are too large for one message")
	}
	return m
}

func strip(r *pb.StepResult) {
	r.Outputs, r.Exports = nil, nil
	for _, child := range r.GetChildrenStepResults() {
		strip(child)
	}
}

// maxOutputs and maxOutputBytes bound the outputs of a job, names and values. GitHub has the same bound of bytes.
const maxOutputs, maxOutputBytes = 1000, 1 << 20

// lastOutputs returns the outputs of the last of a job's steps.
func lastOutputs(steps []engine.StepResult) *pb.Outputs {
	all, size := &pb.Outputs{}, 0
	if len(steps) == 0 {
		return all
	}
	for name, v := range steps[len(steps)-1].Outputs {
		out := &pb.Outputs_Output{Name: name, Masked: v.Sensitive()}
		if !out.GetMasked() {
			out.Value = valid(v.Text())
		}
		size += len(out.GetName()) + len(out.GetValue())
		all.Given = append(all.Given, out)
	}
	if len(all.GetGiven()) > maxOutputs || size > maxOutputBytes {
		return &pb.Outputs{Refused: fmt.Sprintf("the job has more than %d outputs, or outputs of more than %d bytes together",
			maxOutputs, maxOutputBytes)}
	}
	return all
}

// outputsOf returns the outputs of a step, except for sensitive values.
func outputsOf(values map[string]expr.Value) map[string]*pb.StepResult_Output {
	if len(values) == 0 {
		return nil
	}
	outputs := make(map[string]*pb.StepResult_Output, len(values))
	for name, v := range values {
		out := &pb.StepResult_Output{Key: name, Masked: v.Sensitive()}
		if !out.GetMasked() {
			out.Value, out.Typed = valid(v.Text()), v.Proto()
		}
		outputs[name] = out
	}
	return outputs
}

func stateOf(s job.Stat) *pb.JobState {
	return &pb.JobState{
		Id: s.ID, Status: jobStatus[s.State], StartTime: timestamp(s.Started), FinishedTime: timestamp(s.Finished),
		ExitCode: int32(s.ExitCode), Message: valid(s.Message), TimedOut: s.TimedOut, SystemFailed: s.System,
		NothingStarted: s.NothingStarted, ServerFailed: s.ServerFailed,
		StdoutLen: s.Stdout, StderrLen: s.Stderr,
		Isolation: s.Isolation, IsolationReason: valid(s.IsolationReason), CpuSeconds: s.Usage.CPU.Seconds(),
		PeakMemoryBytes: s.Usage.PeakMemory, LargestProcessBytes: s.Usage.LargestProcess,
	}
}

// valid returns text as valid UTF-8: a message with an invalid field cannot be encoded at all.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// timestamp returns t as a message, or nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
