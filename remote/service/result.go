package service

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/engine"
	"github.com/stepmux/stepmux/remote/job"
)

var stepStatus = map[engine.Status]pb.StepResult_Status{
	engine.Running:   pb.StepResult_running,
	engine.Success:   pb.StepResult_success,
	engine.Failure:   pb.StepResult_failure,
	engine.Cancelled: pb.StepResult_cancelled,
	engine.Skipped:   pb.StepResult_skipped,
}

var jobStatus = map[job.State]pb.Job_JobStatus{
	job.Running:   pb.Job_running,
	job.Succeeded: pb.Job_suceeded, //nolint:misspell // the published spelling
	job.Failed:    pb.Job_failed,
	job.Cancelled: pb.Job_cancelled,
}

// stepResult is r as a message. Of the step it has the name only: the rest may be secret, and the
// caller knows it.
func stepResult(r engine.StepResult) *pb.StepResult {
	return &pb.StepResult{
		Step:         &pb.Step{Name: r.Name},
		Status:       stepStatus[r.Status],
		ExitCode:     int32(r.ExitCode),
		Message:      r.Message,
		StartTime:    timestamp(r.Started),
		FinishedTime: timestamp(r.Finished),
	}
}

// jobResult is the tree of a job that has ended.
func jobResult(stat job.Stat, r engine.Result) *pb.StepResult {
	tree := &pb.StepResult{
		Step:         &pb.Step{},
		Status:       stepStatus[r.Status],
		ExitCode:     int32(r.ExitCode),
		Message:      r.Message,
		StartTime:    timestamp(stat.Started),
		FinishedTime: timestamp(stat.Finished),
	}
	for _, s := range r.Steps {
		tree.ChildrenStepResults = append(tree.ChildrenStepResults, stepResult(s))
	}
	return tree
}

func jobOf(s job.Stat) *pb.Job {
	return &pb.Job{
		Id:           s.ID,
		Status:       jobStatus[s.State],
		StartTime:    timestamp(s.Started),
		FinishedTime: timestamp(s.Finished),
		ExitCode:     int32(s.ExitCode),
		Message:      s.Message,
		StdoutLen:    s.Stdout,
		StderrLen:    s.Stderr,
		TimedOut:     s.TimedOut,
	}
}

// timestamp is t, or nil if that has not happened.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
