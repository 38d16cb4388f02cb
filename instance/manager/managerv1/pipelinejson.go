package managerv1

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// PipelineJSON is a Pipeline as stepmux pipelines --output json and the status page show it.
type PipelineJSON struct {
	ID           string            `json:"id"`
	Phase        string            `json:"phase"`
	File         string            `json:"file,omitempty"`
	Name         string            `json:"name,omitempty"`
	Status       string            `json:"status,omitempty"` // success, failure or cancelled, once it has ended
	ExitCode     int32             `json:"exit_code"`
	Error        string            `json:"error,omitempty"`
	Submitted    *time.Time        `json:"submitted,omitempty"`
	Started      *time.Time        `json:"started,omitempty"`
	Ended        *time.Time        `json:"ended,omitempty"` // when it ended, or was blocked
	Canceled     bool              `json:"canceled,omitempty"`
	Counts       map[string]int32  `json:"counts,omitempty"` // jobs, by status
	Stages       []string          `json:"stages,omitempty"`
	Jobs         []PipelineJobJSON `json:"jobs,omitempty"`
	CriticalPath []string          `json:"critical_path,omitempty"`
	Notes        []string          `json:"notes,omitempty"`
}

// PipelineJobJSON is a PipelineJob in a PipelineJSON.
type PipelineJobJSON struct {
	Name     string     `json:"name"`
	Stage    string     `json:"stage,omitempty"`
	Status   string     `json:"status"`
	Why      string     `json:"why,omitempty"`
	Attempts int32      `json:"attempts,omitempty"`
	ExitCode int32      `json:"exit_code,omitempty"`
	Started  *time.Time `json:"started,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Build    string     `json:"build,omitempty"`
}

// JSON returns the pipeline in the form for JSON.
func (p *Pipeline) JSON() PipelineJSON {
	j := PipelineJSON{
		ID: p.GetId(), Phase: p.GetPhase().String(), File: p.GetFile(), Name: p.GetName(), Status: p.GetStatus(),
		ExitCode: p.GetExitCode(), Error: p.GetError(), Submitted: optionalTime(p.GetSubmitted()),
		Started: optionalTime(p.GetStarted()), Ended: optionalTime(p.GetEndedAt()), Canceled: p.GetCanceled(),
		Counts: p.GetCounts(), Stages: p.GetStages(), CriticalPath: p.GetCriticalPath(), Notes: p.GetNotes(),
	}
	for _, job := range p.GetJobs() {
		j.Jobs = append(j.Jobs, PipelineJobJSON{
			Name: job.GetName(), Stage: job.GetStage(), Status: job.GetStatus(), Why: job.GetWhy(),
			Attempts: job.GetAttempts(), ExitCode: job.GetExitCode(), Started: optionalTime(job.GetStarted()),
			Finished: optionalTime(job.GetFinished()), Build: job.GetBuild(),
		})
	}
	return j
}

// CountsText returns how many jobs there are in each status, such as "2 success, 1 running".
func (p *Pipeline) CountsText() string {
	var parts []string
	for status, n := range p.GetCounts() {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, status))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
