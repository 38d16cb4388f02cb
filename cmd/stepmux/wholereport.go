package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
)

// stageView has the lines of the view of a pipeline: one for the whole of it, and one for each stage. It is safe for
// concurrent use.
type stageView struct {
	began  time.Time
	names  []string          // of the stages that have jobs, in order
	stage  map[string]string // by job
	totals map[string]int    // jobs, by stage

	mu     sync.Mutex           // guards the following
	status map[string]string    // by job
	starts map[string]time.Time // of running jobs
}

func newStageView(p *whole.Pipeline) *stageView {
	v := &stageView{
		began: time.Now(), stage: map[string]string{}, totals: map[string]int{}, status: map[string]string{},
		starts: map[string]time.Time{},
	}
	for _, j := range p.Jobs {
		stage := cmp.Or(j.Stage, "jobs") // those of a workflow have none
		v.stage[j.Name] = stage
		if v.totals[stage]++; v.totals[stage] == 1 {
			v.names = append(v.names, stage)
		}
	}
	return v
}

// observe records the status of a job. Jobs of child pipelines are part of the job that started these.
func (v *stageView) observe(job, status string) {
	if _, own := v.stage[job]; !own {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status[job] = status
	delete(v.starts, job)
	if status == running {
		v.starts[job] = time.Now()
	}
}

// The words for jobs that run, and for those that will not change any more.
const running = "running"

var ended = []string{"success", "warning", failed, "cancelled", "skipped", "blocked"}

const failed = "failed"

// lines returns the lines of the view.
func (v *stageView) lines(rows int) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	done, failures, active := map[string]int{}, 0, map[string][]string{}
	for job, status := range v.status {
		if slices.Contains(ended, status) {
			done[v.stage[job]]++
		}
		if status == failed {
			failures++
		}
		if status == running {
			active[v.stage[job]] = append(active[v.stage[job]], job)
		}
	}
	all := 0
	for _, n := range done {
		all += n
	}
	lines := []string{fmt.Sprintf("%d of %s done, %d running, %d failed, %v", all, plural.Count(len(v.stage), "job"),
		len(v.starts), failures, time.Since(v.began).Round(time.Second))}
	longest := 0
	for _, name := range v.names {
		longest = max(longest, min(len(name), 24))
	}
	// Stages that have ended give way to others.
	shown := slices.Clone(v.names)
	most := max(rows/2-1, 1)
	for i := 0; len(shown) > most && i < len(shown); {
		if done[shown[i]] == v.totals[shown[i]] {
			shown = slices.Delete(shown, i, i+1)
		} else {
			i++
		}
	}
	for _, name := range shown[:min(len(shown), most)] {
		line := fmt.Sprintf("%-*s %d/%d", longest, termtext.Cut(termtext.Line(name), longest), done[name], v.totals[name])
		slices.SortFunc(active[name], func(a, b string) int { return v.starts[a].Compare(v.starts[b]) })
		for i, job := range active[name] {
			separator := ", "
			if i == 0 {
				separator = "  "
			}
			took := time.Since(v.starts[job]).Round(time.Second)
			line += fmt.Sprintf("%s%s (%v)", separator, termtext.Cut(termtext.Line(job), 40), took)
		}
		lines = append(lines, line)
	}
	if more := len(shown) - most; more > 0 {
		lines = append(lines, "and "+plural.Count(more, "more stage"))
	}
	return lines
}

// mostOnPath bounds the jobs of a critical path that the summary names.
const mostOnPath = 12

// summarize shows how the jobs of a pipeline ended.
func summarize(show *reporter, r *whole.Report) {
	for _, line := range jobLines(r, "") {
		show.showLine(line)
	}
	seconds := func(s float64) time.Duration {
		return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond)
	}
	for _, line := range remarkLines(r.Remarks()) {
		show.showLine(line)
	}
	path := r.CriticalPath
	text := strings.Join(path[:min(len(path), mostOnPath)], ", ")
	if more := len(path) - mostOnPath; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	title := "pipeline"
	if r.Name != "" {
		title += fmt.Sprintf(" %.160q", r.Name)
	}
	if r.Why != "" {
		show.showLine(fmt.Sprintf("%s: %s: %s", title, r.Status, r.Why))
		return
	}
	show.showLine(fmt.Sprintf("%s: %s in %v; the jobs took %v; critical path: %s", title, r.Status, seconds(r.Wall),
		seconds(r.Busy), text))
}

// mostRemarks bounds the annotations that the summary shows.
const mostRemarks = 20

// remarkLines returns a line for each of the first annotations of a pipeline.
func remarkLines(all []whole.Remark) (lines []string) {
	for _, a := range all[:min(len(all), mostRemarks)] {
		text := a.Level + ": " + a.Job + ": "
		if a.File != "" {
			text += a.File + ":"
			if a.Line > 0 {
				text += fmt.Sprintf("%d:", a.Line)
			}
			text += " "
		}
		if a.Title != "" {
			text += a.Title + ": "
		}
		lines = append(lines, termtext.Cut(termtext.Line(text+a.Message), 400))
	}
	if more := len(all) - mostRemarks; more > 0 {
		lines = append(lines, fmt.Sprintf("and %s; --report-sarif writes all", plural.Count(more, "more annotation")))
	}
	return lines
}

// jobLines returns a line for each job of a pipeline and, more indented, for those of its children.
func jobLines(r *whole.Report, indent string) (lines []string) {
	for _, j := range r.Jobs {
		text := fmt.Sprintf("%s%s%-24s %s", indent, stageColumn(j.Stage), j.Name, j.Status)
		if j.ExitCode != nil && *j.ExitCode != 0 && j.Why != "timed out" {
			text += fmt.Sprintf(": exit code %d", *j.ExitCode)
		}
		if j.Why != "" && j.Why != j.Status {
			text += ": " + termtext.Cut(j.Why, 400)
		}
		if j.Duration > 0 && (j.Why == "" || j.ExitCode != nil) {
			text += fmt.Sprintf(" (%.1fs)", j.Duration)
		}
		if j.Attempts > 1 {
			text += fmt.Sprintf(", %d attempts", j.Attempts)
		}
		lines = append(lines, text)
		if j.Child != nil {
			lines = append(lines, jobLines(j.Child, indent+"  ")...)
		}
	}
	return lines
}

// stageColumn returns the column with the stage of a job. It is empty for jobs of a workflow.
func stageColumn(stage string) string {
	if stage == "" {
		return ""
	}
	return fmt.Sprintf("%-10s ", stage)
}

// writeReport writes the results of a pipeline to a file.
func writeReport(path string, r *whole.Report) error {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetIndent("", "  ")
	if err := to.Encode(r); err != nil {
		return err
	}
	return standalone.WriteFile(path, text.Bytes())
}

// listed is a job in the list of a pipeline.
type listed struct {
	Name   string   `json:"name"`
	Stage  string   `json:"stage,omitempty"`
	When   string   `json:"when,omitempty"`
	Needs  []string `json:"needs"`            // null: all earlier stages
	Builds []string `json:"builds,omitempty"` // of a workflow's job with a matrix that is known
	In     bool     `json:"in_pipeline"`
	WhyOut string   `json:"why,omitempty"`
}

// maxJobsListed bounds a list of jobs.
const maxJobsListed = 10_000

// list adds the jobs of a pipeline to those in all, each with the jobs of the pipeline or workflow that it starts, as
// far as these are known: a job calls a workflow, which may call others, so there may be more than a pipeline has.
func list(all []listed, p *whole.Pipeline, prefix string) []listed {
	for i, j := range p.Jobs {
		if len(all) >= maxJobsListed {
			return all
		}
		one := listed{Name: prefix + j.Name, Stage: j.Stage, When: j.When, In: true}
		if len(j.Builds) > 1 {
			one.Builds = j.Builds
		}
		if n := p.Graph.Nodes[i]; n.After == 0 {
			one.Needs = []string{}
			for _, need := range n.Needs {
				one.Needs = append(one.Needs, prefix+need.Name)
			}
		}
		all = append(all, one)
		var below *whole.Pipeline
		if j.Below != nil {
			below = j.Below()
		} else if j.Trigger != nil {
			below = j.Trigger.Child
		}
		if below != nil {
			all = list(all, below, one.Name+whole.Separator)
		}
	}
	for _, l := range p.Left {
		all = append(all, listed{Name: prefix + l.Name, Stage: l.Stage, WhyOut: l.Why})
	}
	return all
}

// tellNotes writes the notes about a pipeline and its jobs, each once.
func tellNotes(w io.Writer, p *whole.Pipeline, notices []string) {
	for _, j := range p.Jobs {
		for _, text := range j.Notices {
			if !slices.Contains(notices, text) {
				notices = append(notices, text)
			}
		}
	}
	for _, text := range notices {
		fmt.Fprintf(w, "note: %s\n", termtext.Line(text))
	}
}

// listJobs writes the jobs of a pipeline.
func listJobs(w io.Writer, p *whole.Pipeline, asJSON bool) error {
	all := list(nil, p, "")
	if asJSON {
		return writeJSON(w, all)
	}
	var text strings.Builder
	for _, j := range all {
		about := j.When
		switch {
		case !j.In:
			about = "not in the pipeline: " + j.WhyOut
		case j.Needs != nil && len(j.Needs) == 0:
			about += ", needs nothing"
		case j.Needs != nil:
			about += ", needs " + strings.ReplaceAll(fmt.Sprintf("%q", j.Needs), `" "`, `", "`)
		}
		if j.When == "" {
			about = strings.TrimPrefix(about, ", ")
		}
		if len(j.Builds) > 0 {
			about += fmt.Sprintf(", %d builds", len(j.Builds))
		}
		fmt.Fprintln(&text, termtext.Line(fmt.Sprintf("%s%-24s %s", stageColumn(j.Stage), j.Name, about)))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
