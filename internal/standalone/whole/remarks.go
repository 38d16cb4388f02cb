package whole

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/step/annotation"
)

const (
	// maxAnnotations bounds the annotations of a job, and maxRemarks those of all jobs of a run.
	maxAnnotations, maxRemarks = 1000, 20_000
	// maxSummary bounds the summary of a job, and maxSummaries those of all jobs of a run, in bytes.
	maxSummary, maxSummaries = 1 << 20, 64 << 20
)

// remarks are the annotations and the summary of a job, bounded.
type remarks struct {
	Annotations []annotation.Annotation `json:"annotations,omitempty"`
	Summary     string                  `json:"summary,omitempty"`
	// Left are lines about those that are left out.
	Left []string `json:"left,omitempty"`
}

// RemarksText returns the annotations and the summary of a job in JSON, for AddRemarks. It is nil without any.
func RemarksText(report *standalone.Report) ([]byte, error) {
	r := remarksOf(report)
	if len(r.Annotations) == 0 && r.Summary == "" && len(r.Left) == 0 {
		return nil, nil
	}
	return json.Marshal(r)
}

// remarksOf returns the remarks of an attempt of a job.
func remarksOf(report *standalone.Report) (r remarks) {
	r.Annotations, r.Summary = report.Remarks()
	if n := len(r.Annotations); n > maxAnnotations {
		r.Left = append(r.Left, fmt.Sprintf("the report has the first %d of its %d annotations", maxAnnotations, n))
		r.Annotations = r.Annotations[:maxAnnotations]
	}
	if n := len(r.Summary); n > maxSummary {
		r.Left = append(r.Left, fmt.Sprintf("its summary is left out: it has %d bytes, the limit is %d", n, maxSummary))
		r.Summary = ""
	}
	return r
}

// tally has the sizes of the remarks of all jobs of a run.
type tally struct{ annotations, summaries int }

// add adds the remarks of a job. It takes out, and says so, those for which there is no room.
func (t *tally) add(r *remarks) {
	if t.annotations += len(r.Annotations); t.annotations > maxRemarks {
		r.Left = append(r.Left, fmt.Sprintf("its annotations are left out: the jobs have more than %d", maxRemarks))
		t.annotations -= len(r.Annotations)
		r.Annotations = nil
	}
	if t.summaries += len(r.Summary); t.summaries > maxSummaries {
		r.Left = append(r.Left,
			fmt.Sprintf("its summary is left out: those of all jobs have more than %d MiB", maxSummaries>>20))
		t.summaries -= len(r.Summary)
		r.Summary = ""
	}
}

// drop takes out the remarks of a job.
func (t *tally) drop(r *remarks) {
	t.annotations, t.summaries = t.annotations-len(r.Annotations), t.summaries-len(r.Summary)
}

// remarks returns the remarks of an attempt of a job, and tells of those that are left out.
func (c *carrier) remarks(node int, report *standalone.Report) remarks {
	r := remarksOf(report)
	c.mu.Lock()
	c.tally.drop(&c.done[node].remarks) // of an attempt before this one
	c.tally.add(&r)
	c.mu.Unlock()
	for _, text := range r.Left {
		c.teller(node)(text)
	}
	return r
}

// AddRemarks adds annotations and summaries to a report without any. find returns the text of RemarksText of a job, or
// nil. tell is called for those that are left out.
func (r *Report) AddRemarks(find func(job string) ([]byte, error), tell func(text string)) error {
	var all tally
	for i := range r.Jobs {
		j := &r.Jobs[i]
		text, err := find(j.Name)
		var its remarks
		if err == nil && text != nil {
			err = json.Unmarshal(text, &its)
		}
		if err != nil {
			return fmt.Errorf("get the annotations of the job %.160q: %w", j.Name, err)
		}
		all.add(&its)
		for _, line := range its.Left {
			tell(j.Name + ": " + line)
		}
		j.Annotations, j.Summary = its.Annotations, its.Summary
	}
	return nil
}

// Remark is an annotation of a job.
type Remark struct {
	Job string
	annotation.Annotation
}

// Remarks returns the annotations of all jobs, also of those of child pipelines.
func (r *Report) Remarks() (all []Remark) {
	for j := range r.each("") {
		for _, a := range j.Annotations {
			all = append(all, Remark{j.Name, a})
		}
	}
	return all
}

// each yields the reports of all jobs, also of those of child pipelines, with their whole names.
func (r *Report) each(prefix string) func(yield func(JobReport) bool) {
	return func(yield func(JobReport) bool) {
		for _, j := range r.Jobs {
			if j.Name = prefix + j.Name; !yield(j) {
				return
			}
			if j.Child == nil {
				continue
			}
			for inner := range j.Child.each(j.Name + Separator) {
				if !yield(inner) {
					return
				}
			}
		}
	}
}

// Summaries returns the summaries of all jobs as one text in Markdown, each below the name of its job. It is empty if
// no job has one.
func (r *Report) Summaries() []byte {
	var text []byte
	for j := range r.each("") {
		if j.Summary != "" {
			text = fmt.Appendf(text, "# %s\n\n%s\n", inMarkdown.Replace(j.Name), j.Summary)
		}
	}
	return text
}

// inMarkdown makes the name of a job a text without markup.
var inMarkdown = strings.NewReplacer(
	"\n", " ", "\r", " ", `\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`, "#", `\#`,
	"&", `\&`, "!", `\!`,
)

// The parts of a log in the form of SARIF that we write.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver struct {
				Name    string `json:"name"`
				Version string `json:"version,omitempty"`
				About   string `json:"informationUri"`
			} `json:"driver"`
		} `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
		About     struct {
			Job string `json:"job"`
		} `json:"properties"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifLocation struct {
		Physical struct {
			File   sarifFile    `json:"artifactLocation"`
			Region *sarifRegion `json:"region,omitempty"`
		} `json:"physicalLocation"`
	}
	sarifFile struct {
		URI  string `json:"uri"`
		Base string `json:"uriBaseId,omitempty"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
		EndLine     int `json:"endLine,omitempty"`
		EndColumn   int `json:"endColumn,omitempty"`
	}
)

// SARIF returns the annotations of all jobs as a log in the form of SARIF 2.1.0 (OASIS). version is that of this
// program.
func (r *Report) SARIF(version string) ([]byte, error) {
	run := sarifRun{Results: []sarifResult{}}
	of := &run.Tool.Driver
	of.Name, of.Version, of.About = "stepmux", version, "https://github.com/stepmux/stepmux"
	for _, remark := range r.Remarks() {
		run.Results = append(run.Results, remark.sarif())
	}
	text, err := json.MarshalIndent(sarifLog{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run},
	}, "", "  ")
	return append(text, '\n'), err
}

// sarif returns an annotation as a result. Places that SARIF does not allow are left out.
func (a *Remark) sarif() (result sarifResult) {
	result.About.Job, result.Level = a.Job, a.Level
	if !slices.Contains([]string{"error", "warning"}, a.Level) {
		result.Level = "note"
	}
	result.RuleID, result.Message.Text = cmp.Or(a.Title, result.Level), a.Message
	if a.File == "" {
		return result
	}
	var at sarifLocation
	at.Physical.File = sarifFile{(&url.URL{Path: a.File}).String(), "%SRCROOT%"}
	if strings.HasPrefix(a.File, "/") {
		at.Physical.File = sarifFile{URI: (&url.URL{Scheme: "file", Path: a.File}).String()}
	}
	if a.Line > 0 {
		at.Physical.Region = &sarifRegion{StartLine: a.Line, StartColumn: max(a.Column, 0)}
		if a.EndLine > a.Line || a.EndLine == a.Line && a.EndColumn >= a.Column {
			at.Physical.Region.EndLine = a.EndLine
			if a.Column > 0 {
				at.Physical.Region.EndColumn = max(a.EndColumn, 0)
			}
		}
	}
	result.Locations = []sarifLocation{at}
	return result
}
