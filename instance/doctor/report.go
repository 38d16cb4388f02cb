package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
)

// Status is the severity of a finding.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // builds run, but could run better
	Fail Status = "fail" // builds fail
	Skip Status = "skip" // could not be checked, for a reason that another finding gives
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Detail is the observation. It may contain untrusted text.
	Detail string `json:"detail"`
	// Change is the change to make, and Gain its benefit. Both are empty if there is nothing to change.
	Change string `json:"change,omitempty"`
	Gain   string `json:"gain,omitempty"`
}

func okay(check, detail string) Finding { return Finding{Check: check, Status: OK, Detail: detail} }

func failure(check, detail, change string) Finding {
	return Finding{Check: check, Status: Fail, Detail: detail, Change: change}
}

func warning(check, detail, change, gain string) Finding {
	return Finding{Check: check, Status: Warn, Detail: detail, Change: change, Gain: gain}
}

// Report is the findings on one instance.
type Report struct {
	Instance string    `json:"instance"`
	Addr     string    `json:"address"`
	User     string    `json:"user"`
	Usable   bool      `json:"usable"` // no finding is a Fail
	Seconds  float64   `json:"seconds"`
	Findings []Finding `json:"findings"`

	of string // jobs, if the report is about a server of jobs
}

// Add adds a finding of another examination.
func (r *Report) Add(f Finding) {
	r.add(f)
	r.finish(time.Duration(r.Seconds * float64(time.Second)))
}

func (r *Report) add(f Finding) { r.Findings = append(r.Findings, f) }

// skip records checks that could not be made.
func (r *Report) skip(why string, checks ...string) {
	for _, check := range checks {
		r.add(Finding{Check: check, Status: Skip, Detail: why})
	}
}

// finish sets the summary of the findings.
func (r *Report) finish(took time.Duration) {
	r.Seconds = took.Seconds()
	r.Usable = !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })
}

// WriteText writes the report as lines for people. Untrusted text is made safe for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	verdict := "builds can run here"
	switch {
	case r.of == "jobs" && r.Usable:
		verdict = "its jobs can be taken"
	case r.of == "jobs":
		verdict = "its jobs cannot be taken"
	case !r.Usable:
		verdict = "builds would fail here"
	}
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(termtext.Line(fmt.Sprintf(format, args...)) + "\n") }
	at := r.User + "@" + r.Addr
	if r.of == "jobs" {
		at = r.Addr
	}
	line("%s (%s): %s", r.Instance, at, verdict)
	for _, f := range r.Findings {
		line("  %-4s  %-12s  %s", f.Status, f.Check, f.Detail)
		if f.Change != "" {
			line("%22schange: %s", "", f.Change)
		}
		if f.Gain != "" {
			line("%22sgain:   %s", "", f.Gain)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
