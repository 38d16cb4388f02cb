package whole

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/annotation"
)

// The values of Report.Status.
const (
	Success   = "success"
	Failure   = "failure"
	Cancelled = "cancelled"
)

// Report is the result of a pipeline.
type Report struct {
	// Name is the title of the pipeline. It may be empty.
	Name string `json:"name,omitempty"`
	// Status is success, failure or cancelled. A pipeline with jobs that wait for a manual one is a success.
	Status string `json:"status"`
	// Why says in a few words why a pipeline was cancelled by another one.
	Why string `json:"why,omitempty"`
	// ExitCode is that of the first job that failed or, without one, of the first that timed out or was replaced.
	ExitCode int         `json:"exit_code"`
	Jobs     []JobReport `json:"jobs"`
	// Wall is the time of the pipeline in seconds, Busy the sum of the times of its jobs.
	Wall float64 `json:"wall_s"`
	Busy float64 `json:"busy_s"`
	// CriticalPath are the names of the jobs that decided how long the pipeline took, in order.
	CriticalPath []string `json:"critical_path"`
	// Tests are the reports of tests of all jobs, as one document in the form of JUnit. It is nil unless the Config asks
	// for it.
	Tests []byte `json:"-"`
}

// JobReport is the result of a job. A job that the pipeline does not have is "left out".
type JobReport struct {
	Name     string    `json:"name"`
	Stage    string    `json:"stage,omitempty"`
	Status   string    `json:"status"`
	Why      string    `json:"why,omitempty"` // of a job that failed or did not run, or ran in the run that is resumed
	Attempts int       `json:"attempts,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	Duration float64   `json:"duration_s,omitempty"`
	// Annotations are remarks about files of the project, and Summary is a text in Markdown. Only actions have them, and
	// only if the Executor knows them.
	Annotations []annotation.Annotation `json:"annotations,omitempty"`
	Summary     string                  `json:"summary,omitempty"`
	// Child is the report of the pipeline that the job started.
	Child *Report `json:"pipeline,omitempty"`
}

// isComplete reports whether there is nothing to resume: all jobs of the pipeline have succeeded, or shall not run.
func (r *Report) isComplete() bool {
	return !slices.ContainsFunc(r.Jobs, func(j JobReport) bool {
		switch j.Status {
		case pipeline.Succeeded.String(), pipeline.Skipped.String(), LeftOut:
			return j.Child != nil && !j.Child.isComplete()
		default:
			return true
		}
	})
}

// LeftOut is the status of a job that the pipeline does not have.
const LeftOut = "left out"

// report returns the report of a run that has ended.
func (c *carrier) report(run *pipeline.Progress) *Report {
	r := &Report{Name: c.pipeline.Name, Status: Success}
	for i := range c.pipeline.Jobs {
		if builds := c.done[i].report; builds != nil {
			r.Jobs = append(r.Jobs, builds.Jobs...)
		} else {
			r.Jobs = append(r.Jobs, c.jobReport(run, i))
		}
	}
	r.addLeft(c.pipeline)
	for _, node := range run.CriticalPath() {
		if builds := c.done[node].report; builds != nil {
			r.CriticalPath = append(r.CriticalPath, builds.CriticalPath...)
		} else {
			r.CriticalPath = append(r.CriticalPath, c.pipeline.Jobs[node].Name)
		}
	}
	r.sum()
	if node, ok := run.Failed(); ok {
		r.Status, r.ExitCode = Failure, run.Status(node).Result.ExitCode
	} else if run.Count(pipeline.Cancelled) > 0 {
		r.Status, r.ExitCode = Cancelled, c.cutCode()
	}
	return r
}

// addLeft adds the jobs that a pipeline does not have.
func (r *Report) addLeft(p *Pipeline) {
	for _, l := range p.Left {
		r.Jobs = append(r.Jobs, JobReport{Name: l.Name, Stage: l.Stage, Status: LeftOut, Why: l.Why})
	}
}

// cutCode returns the exit code of the first job that timed out or was replaced, or 0.
func (c *carrier) cutCode() (code int) {
	var first time.Time
	for _, m := range c.done {
		s := m.status
		if s.State == pipeline.Cancelled && s.Result.ExitCode != 0 && (code == 0 || s.Ended.Before(first)) {
			code, first = s.Result.ExitCode, s.Ended
		}
	}
	return code
}

// jobReport returns the report of a job that has ended.
func (c *carrier) jobReport(run *pipeline.Progress, node int) JobReport {
	s, j := run.Status(node), c.pipeline.Jobs[node]
	r := JobReport{Name: j.Name, Stage: j.Stage, Status: s.State.String(), Why: run.Why(node)}
	if c.done[node].resumed {
		r.Why = "ran earlier"
	}
	if s.Attempt == 0 || s.State == pipeline.Skipped {
		return r
	}
	r.Attempts = s.Attempt
	r.Annotations, r.Summary = c.done[node].Annotations, c.done[node].Summary
	if r.Started, r.Finished = c.done[node].began, s.Ended; j.Trigger != nil {
		r.Started = s.Began // it has no slot
	}
	if !r.Started.IsZero() {
		r.Duration = r.Finished.Sub(r.Started).Seconds()
	}
	if s.State == pipeline.Failed || s.State == pipeline.Warned {
		r.Why = cmp.Or(r.Why, c.done[node].why)
	}
	late := s.Result.Reason == TimedOut && s.State != pipeline.Succeeded
	if late {
		r.Why = timedOut
	}
	if s.State.Ran() || late {
		code := s.Result.ExitCode
		r.ExitCode = &code
	}
	return r
}

// outerStep matches the name of a step that another one follows.
var outerStep = lazyregexp.New(`^step "[^"]*": (step ")`)

// whyOf returns why a job failed, in a few words. It is empty if there is nothing to say beside its exit code.
func whyOf(r *standalone.Report) string {
	if r.Status != Failure {
		return ""
	}
	text := r.Message
	if r.ExitCode != nil {
		text = strings.TrimSuffix(text, fmt.Sprintf(": exec: exit status %d", *r.ExitCode))
	}
	text = outerStep().ReplaceAllString(text, "$1") // that of a workflow's job is the job
	if text == `step "script"` {
		return ""
	}
	return text
}

// sum sets the times of a pipeline from those of its jobs.
func (r *Report) sum() {
	var first, last time.Time
	for _, j := range r.Jobs {
		if j.Started.IsZero() {
			continue
		}
		r.Busy += j.Duration
		if first.IsZero() || j.Started.Before(first) {
			first = j.Started
		}
		if j.Finished.After(last) {
			last = j.Finished
		}
	}
	r.Wall = last.Sub(first).Seconds()
}
