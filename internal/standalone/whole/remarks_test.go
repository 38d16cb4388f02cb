package whole

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/annotation"
)

func TestAnnotationsAsSARIF(t *testing.T) {
	about := func(file string, line, endLine, column, endColumn int) annotation.Annotation {
		return annotation.Annotation{
			Level: "warning", Message: "m", File: file, Line: line, EndLine: endLine, Column: column, EndColumn: endColumn,
		}
	}
	for _, c := range []struct {
		of   annotation.Annotation
		want string
	}{
		{
			annotation.Annotation{Level: "notice", Message: "m", Title: "t"},
			`{"ruleId":"t","level":"note","message":{"text":"m"},`,
		},
		{annotation.Annotation{Level: "error", Message: "m"}, `{"ruleId":"error","level":"error","message":{"text":"m"},`},
		{about("a:b %.go", 0, 0, 0, 0), `"artifactLocation":{"uri":"./a:b%20%25.go","uriBaseId":"%SRCROOT%"}}`},
		{about("/tmp/x", 1, 0, 0, 0), `"artifactLocation":{"uri":"file:///tmp/x"},"region":{"startLine":1}}`},
		{about("f", -1, 2, 3, 4), `"uriBaseId":"%SRCROOT%"}}`},
		{about("f", 1, 0, -1, 5), `"region":{"startLine":1}}`},
		{about("f", 2, 1, 3, 4), `"region":{"startLine":2,"startColumn":3}}`},
		{about("f", 2, 2, 3, 2), `"region":{"startLine":2,"startColumn":3}}`},
		{about("f", 2, 2, 3, 5), `"region":{"startLine":2,"startColumn":3,"endLine":2,"endColumn":5}}`},
		{about("f", 2, 4, 0, 5), `"region":{"startLine":2,"endLine":4}}`},
		{about("f", 2, 4, 3, -5), `"region":{"startLine":2,"startColumn":3,"endLine":4}}`},
	} {
		r := &Report{Jobs: []JobReport{{Name: "j", Annotations: []annotation.Annotation{c.of}}}}
		text, err := json.Marshal(r.Remarks()[0].sarif())
		require.NoError(t, err)
		require.Contains(t, string(text), c.want)
		require.Contains(t, string(text), `"properties":{"job":"j"}`)
	}
	text, err := new(Report).SARIF("")
	require.NoError(t, err)
	require.Contains(t, string(text), `"results": []`)
}

func TestSummariesHaveTheNamesOfTheirJobs(t *testing.T) {
	r := &Report{Jobs: []JobReport{
		{Name: "a\n# b_c", Summary: "one\n"},
		{Name: "quiet"},
		{Name: "call", Child: &Report{Jobs: []JobReport{{Name: "in", Summary: "two\n"}}}},
	}}
	require.Equal(t, "# a \\# b\\_c\n\none\n\n# call / in\n\ntwo\n\n", string(r.Summaries()))
}

func TestRemarksOfAllJobsAreBounded(t *testing.T) {
	var said []string
	c := &carrier{
		runner:   &runner{cfg: Config{Say: func(text string) { said = append(said, text) }}},
		pipeline: &Pipeline{Jobs: []*Job{{Name: "a"}, {Name: "b"}}, Graph: pipeline.Graph{}}, done: make([]made, 2),
	}
	report := func(annotations, summary int) *standalone.Report {
		return &standalone.Report{Steps: []standalone.StepReport{
			{Annotations: make([]annotation.Annotation, annotations), Summary: strings.Repeat("x", summary)},
		}}
	}
	got := c.remarks(0, report(maxAnnotations+1, maxSummary))
	require.Len(t, got.Annotations, maxAnnotations)
	require.Empty(t, got.Summary, "a line break comes to it")
	require.Equal(t, []string{
		"a: the report has the first 1000 of its 1001 annotations",
		"a: its summary is left out: it has 1048577 bytes, the limit is 1048576",
	}, said)

	said, c.tally = nil, tally{maxRemarks - 10, maxSummaries - 10}
	c.done[1].remarks = c.remarks(1, report(10, 9))
	require.Len(t, c.done[1].Annotations, 10)
	c.done[1].remarks = c.remarks(1, report(5, 5)) // another attempt
	require.Equal(t, maxRemarks-5, c.tally.annotations)
	require.Equal(t, maxSummaries-4, c.tally.summaries)
	require.Empty(t, said)
	got = c.remarks(0, report(6, 6))
	require.Empty(t, got.Annotations)
	require.Empty(t, got.Summary)
	require.Equal(t, []string{
		"a: its annotations are left out: the jobs have more than 20000",
		"a: its summary is left out: those of all jobs have more than 64 MiB",
	}, said)
}

// Symptom: nothing told why a job failed whose action could not be found, or whose expression was not valid.
func TestWhyAJobFailed(t *testing.T) {
	for message, want := range map[string]string{
		`step "script": exec: exit status 3`:                "",
		`step "job": step "say": exec: exit status 3`:       `step "say"`,
		`step "job": step "say": w.yml:4: run: not valid`:   `step "say": w.yml:4: run: not valid`,
		`step "a": step "b": step "c": exec: exit status 4`: `step "b": step "c": exec: exit status 4`,
		"": "",
	} {
		code := 3
		require.Equal(t, want, whyOf(&standalone.Report{Status: Failure, Message: message, ExitCode: &code}))
		require.Empty(t, whyOf(&standalone.Report{Status: Success, Message: message}))
	}
}
