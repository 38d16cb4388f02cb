package whole

import (
	"time"

	"github.com/stepmux/stepmux/pipeline"
)

// The values of Report.Status.
const (
	Success   = "success"
	Failure   = "failure"
	Cancelled = "cancelled"
)

// Report is the result of a pipeline.
type Report struct {
	// Status is success, failure or cancelled. A pipeline with jobs that wait for a manual one is a success.
	Status string `json:"status"`
	// ExitCode is that of the first job that failed.
	ExitCode int         `json:"exit_code"`
	Jobs     []JobReport `json:"jobs"`
	// Wall is the time of the pipeline in seconds, Busy the sum of the times of its jobs.
	Wall float64 `json:"wall_s"`
	Busy float64 `json:"busy_s"`
	// CriticalPath are the names of the jobs that decided how long the pipeline took, in order.
	CriticalPath []string `json:"critical_path"`
}

// JobReport is the result of a job. A job that the pipeline does not have is "left out".
type JobReport struct {
	Name     string    `json:"name"`
	Stage    string    `json:"stage"`
	Status   string    `json:"status"`
	Why      string    `json:"why,omitempty"` // of a job that did not run
	Attempts int       `json:"attempts,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	Duration float64   `json:"duration_s,omitempty"`
}

// newReport returns the report of a run that has ended.
func newReport(p *Pipeline, run *pipeline.Progress) *Report {
	r := &Report{Status: Success}
	var first, last time.Time
	for i, j := range p.Jobs {
		s := run.Status(i)
		job := JobReport{Name: j.Name, Stage: j.Stage, Status: s.State.String(), Why: run.Why(i), Attempts: s.Attempt}
		if s.Attempt > 0 {
			job.Started, job.Finished = s.Began, s.Ended
			took := s.Ended.Sub(s.Began)
			job.Duration = took.Seconds()
			r.Busy += took.Seconds()
			if first.IsZero() || s.Began.Before(first) {
				first = s.Began
			}
			if s.Ended.After(last) {
				last = s.Ended
			}
			if s.State.Ran() {
				code := s.Result.ExitCode
				job.ExitCode = &code
			}
		}
		r.Jobs = append(r.Jobs, job)
	}
	r.Wall = last.Sub(first).Seconds()
	for _, l := range p.Left {
		r.Jobs = append(r.Jobs, JobReport{Name: l.Name, Stage: l.Stage, Status: "left out", Why: l.Why})
	}
	for _, node := range run.CriticalPath() {
		r.CriticalPath = append(r.CriticalPath, p.Jobs[node].Name)
	}
	if node, ok := run.Failed(); ok {
		r.Status, r.ExitCode = Failure, run.Status(node).Result.ExitCode
	} else if run.Count(pipeline.Cancelled) > 0 {
		r.Status = Cancelled
	}
	return r
}
