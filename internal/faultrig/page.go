package faultrig

import (
	"fmt"
	"strings"
	"time"
)

// The tables stand in a page between these lines.
const (
	pageBegin = "<!-- faults: the tables below are written by make faults-report -->"
	pageEnd   = "<!-- faults: end of the tables -->"
)

// Report is all that was measured.
type Report struct {
	Total  Count   `json:"total"`
	Kinds  []Count `json:"kinds"`
	Routes []Count `json:"routes"`
	Each   []Count `json:"each"` // kind on each route
	Soak   *Soaked `json:"soak,omitempty"`
}

// Soaked is the summary of a soak.
type Soaked struct {
	Seconds float64        `json:"seconds"`
	Builds  int            `json:"builds"`
	Lost    int            `json:"lost"`
	Faults  int            `json:"faults"`
	Wrong   int            `json:"wrong"`
	Fits    map[string]Fit `json:"fits"`
}

// NewReport adds up results. soak may be nil.
func NewReport(results []Result, soak *SoakResult) Report {
	r := Report{
		Kinds:  CountBy(results, func(r Result) (Kind, string) { return r.Kind, "" }),
		Routes: CountBy(results, func(r Result) (Kind, string) { return "", r.Route }),
		Each:   CountBy(results, func(r Result) (Kind, string) { return r.Kind, r.Route }),
	}
	for _, c := range CountBy(results, func(Result) (Kind, string) { return "", "" }) {
		r.Total = c
	}
	if soak != nil {
		soak.fit()
		r.Soak = &Soaked{soak.Seconds, soak.Builds, soak.Lost, soak.Faults, len(soak.Findings), soak.Fits}
	}
	return r
}

// Write puts the report's tables into a page, in place of those that are there.
func (r Report) Write(page string) (string, error) {
	before, rest, ok := strings.Cut(page, pageBegin+"\n")
	_, after, ended := strings.Cut(rest, pageEnd+"\n")
	if !ok || !ended {
		return "", fmt.Errorf("the page has no lines %q and %q", pageBegin, pageEnd)
	}
	return before + pageBegin + "\n\n" + r.markdown() + "\n" + pageEnd + "\n" + after, nil
}

func (r Report) markdown() string {
	var s strings.Builder
	t := r.Total
	fmt.Fprintf(&s, "%d faults in %d rounds, over %d builds, of which %d were lost. What was found wrong:\n\n", t.Faults, t.Rounds, t.Builds, t.Lost)
	s.WriteString("| what | times |\n|---|---|\n")
	for _, what := range AllFindings {
		fmt.Fprintf(&s, "| %s | %d |\n", what, t.Wrong[what])
	}
	s.WriteString("\nBy kind of fault. A lost build's end is counted from the round's first fault that could cost it; clean is from the last build's end:\n\n")
	s.WriteString("| fault | faults | builds | lost | a lost build's end, p50 / max | VMs clean, max | wrong |\n|---|---|---|---|---|---|---|\n")
	for _, c := range r.Kinds {
		fmt.Fprintf(&s, "| `%s`: %s | %d | %d | %d | %s | %s | %d |\n", c.Kind, kinds[c.Kind].does, c.Faults, c.Builds, c.Lost, ends(c), shown(c.CleanMax), c.wrong())
	}
	s.WriteString("\nBy route:\n\n| route | rounds | faults | builds | lost | wrong |\n|---|---|---|---|---|---|\n")
	for _, c := range r.Routes {
		fmt.Fprintf(&s, "| %s | %d | %d | %d | %d | %d |\n", c.Route, c.Rounds, c.Faults, c.Builds, c.Lost, c.wrong())
	}
	if r.Soak != nil {
		s.WriteString(r.Soak.markdown())
	}
	return s.String()
}

func (r *Soaked) markdown() string {
	var s strings.Builder
	fmt.Fprintf(&s, "\nSoak: one manager for %v, %d builds on %d VMs, %d faults, %d builds lost, %d things wrong. Each line is fitted to samples taken while no build ran:\n\n",
		(time.Duration(r.Seconds) * time.Second).Round(time.Minute), r.Builds, soakVMs, r.Faults, r.Lost, r.Wrong)
	s.WriteString("| | mean | grows in an hour by | |\n|---|---|---|---|\n")
	for _, row := range []struct {
		name, title string
		unit        float64
	}{
		{"heap", "live heap, MiB", 1 << 20},
		{"rss", "resident memory, MiB", 1 << 20},
		{"threads", "threads", 1},
		{"goroutines", "goroutines", 1},
		{"files", "open files", 1},
		{"processes", "processes on the VMs", 1},
	} {
		f := r.Fits[row.name]
		if f.Mean == 0 {
			continue // an earlier rig did not sample it
		}
		word := "grows"
		if f.Flat {
			word = "flat"
		}
		fmt.Fprintf(&s, "| %s | %.1f | %.2f ± %.2f | %s |\n", row.title, f.Mean/row.unit, f.Slope/row.unit, f.Error/row.unit, word)
	}
	return s.String()
}

func (c Count) wrong() (n int) {
	for _, k := range c.Wrong {
		n += k
	}
	return n
}

func ends(c Count) string {
	if len(c.ends) == 0 {
		return "-"
	}
	return shown(c.EndP50) + " / " + shown(c.EndMax)
}

// shown is a time in milliseconds, for a reader.
func shown(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}
