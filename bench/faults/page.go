package faults

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Report holds the results of rounds, and of a soak, which may be nil.
type Report struct {
	Rounds []Result
	Soak   *SoakResult
}

// Write puts the report's tables into a page, in place of those that are there. A part that was not measured keeps what
// stands there.
func (r Report) Write(page string) (string, error) {
	parts := map[string]string{}
	if len(r.Rounds) > 0 {
		parts["faults"] = roundsMarkdown(r.Rounds)
	}
	if r.Soak != nil {
		parts["soak"] = r.Soak.markdown()
	}
	for name, text := range parts {
		begin, end := pageMarks(name)
		before, rest, ok := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			return "", fmt.Errorf("the page has no lines %q and %q", begin, end)
		}
		page = before + pagePart(name, text) + after
	}
	return page, nil
}

// pageMarks returns the lines of a page between which the tables of a part stand.
func pageMarks(part string) (begin, end string) {
	return "<!-- " + part + ": written by make faults-report -->\n", "<!-- " + part + ": end -->\n"
}

func pagePart(part, text string) string {
	begin, end := pageMarks(part)
	return begin + "\n" + text + "\n" + end
}

func roundsMarkdown(rounds []Result) string {
	var s strings.Builder
	t := tallyBy(rounds, func(Result) (Kind, string) { return "", "" })[0]
	fmt.Fprintf(&s, "%d faults in %d rounds, over %d builds (%d lost). What was found wrong:\n\n", t.Faults,
		t.Rounds, t.Builds, t.Lost)
	s.WriteString("| what | times |\n|---|---|\n")
	for _, what := range AllFindings {
		fmt.Fprintf(&s, "| %s | %d |\n", what, t.Wrong[what])
	}
	s.WriteString("\nBy kind of fault. A lost build's end is counted from the round's first fault that could cost it; " +
		"clean is from the last build's end:\n\n")
	s.WriteString("| fault | faults | builds | lost | a lost build's end, p50 / max | VMs clean, max | wrong |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, c := range tallyBy(rounds, func(r Result) (Kind, string) { return r.Kind, "" }) {
		fmt.Fprintf(&s, "| `%s`: %s | %d | %d | %d | %s | %s | %d |\n", c.Kind, kinds[c.Kind].does, c.Faults, c.Builds,
			c.Lost, ends(c), shown(c.CleanMax), c.wrong())
	}
	s.WriteString("\nBy route:\n\n| route | rounds | faults | builds | lost | wrong |\n|---|---|---|---|---|---|\n")
	for _, c := range tallyBy(rounds, func(r Result) (Kind, string) { return "", r.Route }) {
		fmt.Fprintf(&s, "| %s | %d | %d | %d | %d | %d |\n", c.Route, c.Rounds, c.Faults, c.Builds, c.Lost, c.wrong())
	}
	return s.String()
}

func (r *SoakResult) markdown() string {
	r.fit()
	var s strings.Builder
	fmt.Fprintf(&s, "One manager for %v, after %v to warm up, %d builds on %d VMs, %d faults, %d builds lost, "+
		"%d things wrong. Each line is fitted to samples taken while no build ran. The share of each open connection "+
		"is fitted beside it:\n\n",
		minutes(r.Seconds-r.WarmUp), minutes(r.WarmUp), r.Builds, soakVMs, r.Faults, r.Lost, len(r.Findings))
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
		fmt.Fprintf(&s, "| %s | %.1f | %.2f ± %.2f | %s |\n", row.title, f.Mean/row.unit, hundredths(f.Slope/row.unit),
			f.Error/row.unit, word)
	}
	return s.String()
}

// hundredths rounds, so that nothing is -0.00.
func hundredths(v float64) float64 { return math.Round(v*100)/100 + 0 }

func minutes(seconds float64) time.Duration {
	return (time.Duration(seconds) * time.Second).Round(time.Minute)
}

func (c tally) wrong() (n int) {
	for _, k := range c.Wrong {
		n += k
	}
	return n
}

func ends(c tally) string {
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
