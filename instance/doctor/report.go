package doctor

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
)

// Status says how bad a finding is.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // builds run, and would run better
	Fail Status = "fail" // builds fail
	Skip Status = "skip" // could not be found out, for a reason that another finding tells
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Detail is the observation. It may hold foreign text.
	Detail string `json:"detail"`
	// Change advises a change, and Gain names its benefit. Both are empty if nothing is to be done.
	Change string `json:"change,omitempty"`
	Gain   string `json:"gain,omitempty"`
}

// Report is the findings on one instance.
type Report struct {
	Instance string    `json:"instance"`
	Addr     string    `json:"address"`
	User     string    `json:"user"`
	Usable   bool      `json:"usable"` // no finding is a Fail
	Seconds  float64   `json:"seconds"`
	Findings []Finding `json:"findings"`
}

func (r *Report) add(f Finding) { r.Findings = append(r.Findings, f) }

// skip notes checks that could not be made.
func (r *Report) skip(why string, checks ...string) {
	for _, check := range checks {
		r.add(Finding{Check: check, Status: Skip, Detail: why})
	}
}

// finish sums the findings up.
func (r *Report) finish(took time.Duration) {
	r.Seconds = took.Seconds()
	r.Usable = true
	for _, f := range r.Findings {
		if f.Status == Fail {
			r.Usable = false
		}
	}
}

// WriteText writes the report as lines for people. Foreign text is made harmless.
func (r *Report) WriteText(w io.Writer) error {
	verdict := "builds can run here"
	if !r.Usable {
		verdict = "builds would fail here"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s@%s): %s\n", r.Instance, r.User, r.Addr, verdict)
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "  %-4s  %-12s  %s\n", f.Status, f.Check, termtext.Line(f.Detail))
		if f.Change != "" {
			fmt.Fprintf(&b, "%22schange: %s\n", "", termtext.Line(f.Change))
		}
		if f.Gain != "" {
			fmt.Fprintf(&b, "%22sgain:   %s\n", "", termtext.Line(f.Gain))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
