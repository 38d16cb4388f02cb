package standalone

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/annotation"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Report is the result of a job and all its steps. It has no secrets. Its JSON form is the schema stepmux-result/v1.
type Report struct {
	// Schema is stepmux-result/v1.
	Schema string `json:"schema"`
	// Status is success, failure or cancelled.
	Status string `json:"status"`
	// Reason is the reason of a failure; empty after a success.
	Reason Reason `json:"reason,omitempty"`
	// ExitCode is 0 after a success, otherwise that of the step that failed. It is nil if the step has none, as after a
	// timeout.
	ExitCode *int             `json:"exit_code,omitempty"`
	Message  string           `json:"message,omitempty"`
	Started  time.Time        `json:"started"`
	Finished time.Time        `json:"finished"`
	Duration float64          `json:"duration_s"`
	Outputs  map[string]value `json:"outputs,omitempty"`
	Exports  map[string]value `json:"exports,omitempty"`
	// Warnings are those of the job's Given.
	Warnings []Problem    `json:"warnings,omitempty"`
	Steps    []StepReport `json:"steps"`

	// Passing says that the job has made artifacts that end with the run.
	Passing bool `json:"-"`
	// Trace is the trace of the job. It is nil if the job has none or it could not be written.
	Trace *trace.Trace `json:"-"`
}

// StepReport is the result of a step and the steps below it.
type StepReport struct {
	Name string `json:"name"`
	// Status is success, failure, cancelled or skipped.
	Status   string           `json:"status"`
	ExitCode *int             `json:"exit_code,omitempty"` // nil if the step never ran, or failed without a code
	Message  string           `json:"message,omitempty"`
	Warnings []string         `json:"warnings,omitempty"`
	Started  time.Time        `json:"started,omitzero"`
	Finished time.Time        `json:"finished,omitzero"`
	Duration float64          `json:"duration_s"`
	Outputs  map[string]value `json:"outputs,omitempty"`
	Exports  map[string]value `json:"exports,omitempty"`
	// Annotations are remarks about files of the project, and Summary is a text in Markdown. Only actions have them.
	Annotations []annotation.Annotation `json:"annotations,omitempty"`
	Summary     string                  `json:"summary,omitempty"`
	Steps       []StepReport            `json:"steps,omitempty"`
}

const schema = "stepmux-result/v1"

// Reason is the reason of a failure.
type Reason string

// The values of Reason.
const (
	Script    Reason = "script"    // a step failed
	Invalid   Reason = "invalid"   // the job is not valid; no step ran
	TimedOut  Reason = "timeout"   // it exceeded its timeout
	Cancelled Reason = "cancelled" // it was stopped
	System    Reason = "system"    // this machine failed
)

// newReport makes the report of a job that ran in dir.
func newReport(stat job.Stat, r engine.Result, dir string) *Report {
	return &Report{
		Schema:   schema,
		Status:   r.Status.String(),
		Reason:   reasonOf(r),
		ExitCode: trace.ExitCode(r.Status.String(), r.ExitCode),
		Message:  r.Message,
		Started:  stat.Started,
		Finished: stat.Finished,
		Duration: stat.Finished.Sub(stat.Started).Seconds(),
		Outputs:  valuesOf(r.Outputs),
		Exports:  valuesOf(r.Exports),
		Steps:    stepReports(r.Steps, dir),
	}
}

// ReportOf makes the report of a job that ran elsewhere from its trace.
func ReportOf(t *trace.Trace) *Report {
	id, runs := &t.Identity, map[string]*trace.StepRun{}
	for i := range t.Volatile.Steps {
		runs[t.Volatile.Steps[i].Path] = &t.Volatile.Steps[i]
	}
	return &Report{
		Schema: schema, Status: id.Status, Reason: Reason(id.Reason), ExitCode: id.ExitCode, Message: t.Volatile.Message,
		Started: t.Volatile.Started, Finished: t.Volatile.Ended,
		Duration: t.Volatile.Ended.Sub(t.Volatile.Started).Seconds(),
		Outputs:  tracedValues(id.Outputs), Exports: tracedValues(id.Exports), Steps: tracedSteps(id.Steps, runs), Trace: t,
	}
}

func tracedSteps(steps []trace.Step, runs map[string]*trace.StepRun) []StepReport {
	reports := make([]StepReport, len(steps))
	for i := range steps {
		s := &steps[i]
		reports[i] = StepReport{
			Name: s.Name, Status: s.Status, ExitCode: s.ExitCode, Outputs: tracedValues(s.Outputs),
			Exports: tracedValues(s.Exports), Annotations: within(trace.WorkDir, s.Annotations), Summary: s.Summary.Value,
			Steps: tracedSteps(s.Steps, runs),
		}
		if run := runs[s.Path]; run != nil {
			r := &reports[i]
			r.Message, r.Warnings, r.Started, r.Finished = run.Message, run.Warnings, run.Started, run.Ended
			r.Duration = run.Ended.Sub(run.Started).Seconds()
		}
	}
	return reports
}

func tracedValues(values mask.Values) map[string]value {
	if len(values) == 0 {
		return nil
	}
	all := make(map[string]value, len(values))
	for name, v := range values {
		if v.Masked {
			v.Value = v.Value.MarkSensitive()
		}
		all[name] = value{v.Value}
	}
	return all
}

func reasonOf(r engine.Result) Reason {
	switch {
	case r.Status == engine.Success:
		return ""
	case r.Status == engine.Cancelled:
		return Cancelled
	case r.Invalid:
		return Invalid
	case r.TimedOut:
		return TimedOut
	case r.System:
		return System
	default:
		return Script
	}
}

func stepReports(results []engine.StepResult, dir string) []StepReport {
	reports := make([]StepReport, len(results))
	for i, r := range results {
		reports[i] = StepReport{
			Name:        r.Name,
			Status:      r.Status.String(),
			ExitCode:    trace.ExitCode(r.Status.String(), r.ExitCode),
			Message:     r.Message,
			Warnings:    r.Warnings,
			Started:     r.Started,
			Finished:    r.Finished,
			Outputs:     valuesOf(r.Outputs),
			Exports:     valuesOf(r.Exports),
			Annotations: within(dir, r.Annotations),
			Summary:     r.Summary,
			Steps:       stepReports(r.Steps, dir),
		}
		if !r.Finished.IsZero() {
			reports[i].Duration = r.Finished.Sub(r.Started).Seconds()
		}
	}
	return reports
}

// within returns annotations in which the names of files below dir, the directory of the job, are relative to it.
func within(dir string, list []annotation.Annotation) []annotation.Annotation {
	list = slices.Clone(list)
	for i := range list {
		list[i].File = strings.TrimPrefix(list[i].File, dir+"/")
	}
	return list
}

// Remarks returns the annotations of all steps, and their summaries as one text, in the order of the steps.
func (r *Report) Remarks() (annotations []annotation.Annotation, summary string) {
	var text strings.Builder
	var of func(steps []StepReport)
	of = func(steps []StepReport) {
		for _, s := range steps {
			annotations = append(annotations, s.Annotations...)
			if text.WriteString(s.Summary); s.Summary != "" && !strings.HasSuffix(s.Summary, "\n") {
				text.WriteByte('\n')
			}
			of(s.Steps)
		}
	}
	of(r.Steps)
	return annotations, text.String()
}

// value is a value whose JSON form is {"masked": true} if it is or contains a secret.
type value struct{ expr.Value }

// MarshalJSON implements [json.Marshaler].
func (v value) MarshalJSON() ([]byte, error) {
	if v.Sensitive() {
		return []byte(`{"masked":true}`), nil
	}
	return v.Value.MarshalJSON()
}

// SetStepOutputs sets the outputs of the only step of a job that ran elsewhere. masked are the names of those that
// contain secrets.
func (r *Report) SetStepOutputs(outputs map[string]string, masked []string) {
	values := make(map[string]value, len(outputs)+len(masked))
	for name, text := range outputs {
		v, _ := expr.New(text) // an error would be about more bytes than a VM sends
		values[name] = value{v}
	}
	for _, name := range masked {
		values[name] = value{expr.Value{}.MarkSensitive()}
	}
	if len(r.Steps) == 0 {
		r.Steps = make([]StepReport, 1)
	}
	r.Steps[0].Outputs = values
}

// StepOutputs returns the outputs of the only step of a job, and the names of those that contain secrets.
func (r *Report) StepOutputs() (outputs map[string]string, masked []string) {
	if len(r.Steps) != 1 {
		return nil, nil
	}
	outputs = map[string]string{}
	for name, v := range r.Steps[0].Outputs {
		if v.Sensitive() {
			masked = append(masked, name)
		} else {
			outputs[name] = v.Text()
		}
	}
	slices.Sort(masked)
	return outputs, masked
}

func valuesOf(values map[string]expr.Value) map[string]value {
	if len(values) == 0 {
		return nil
	}
	all := make(map[string]value, len(values))
	for name, v := range values {
		all[name] = value{v}
	}
	return all
}

// JSON returns the report as JSON that ends with a newline, indented or on one line.
func (r *Report) JSON(indent bool) ([]byte, error) {
	marshal := json.Marshal
	if indent {
		marshal = func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }
	}
	data, err := marshal(r)
	return append(data, '\n'), err
}

// WriteFile writes the report to a file that only this user can read. It replaces an older file completely or, after an
// error, not at all.
func (r *Report) WriteFile(path string) error {
	data, err := r.JSON(true)
	if err != nil {
		return err
	}
	return WriteFile(path, data)
}

// Refused returns the report of a job that did not run because its source is not valid. err says why.
func Refused(err error) *Report {
	now := time.Now()
	return &Report{
		Schema: schema, Status: engine.Failure.String(), Reason: Invalid, Message: err.Error(),
		Started: now, Finished: now, Steps: []StepReport{},
	}
}
