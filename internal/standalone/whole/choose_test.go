package whole_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/gitlabpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/pipeline"
)

// planOf returns the pipeline of a valid file.
func planOf(t testing.TB, text string) *whole.Pipeline {
	t.Helper()
	p, err := gitlabpipeline.Read(standalone.Source{
		Name: "ci.yml", Text: []byte(text), Format: standalone.GitLabCI, WorkDir: t.TempDir(),
	})
	require.NoError(t, err)
	return p
}

func TestChosenJobsRunWithoutTheOthers(t *testing.T) {
	const text = `
.s: {script: [x]}
a: {extends: .s, stage: build}
b: {extends: .s, stage: build}
unit: {extends: .s, parallel: 2, needs: [a]}
hand: {extends: .s, when: manual, needs: []}
late: {extends: .s, rules: [{when: delayed, start_in: 1h}], needs: []}
deploy: {extends: .s, stage: deploy, needs: ["unit 2/2"]}
all: {extends: .s, stage: deploy}
gone: {extends: .s, rules: [{if: $GONE}]}
`
	for _, c := range []struct {
		choice whole.Choice
		want   string
	}{
		{whole.Choice{}, "a, b, unit 1/2, unit 2/2, hand manual, late, deploy, all"},
		{whole.Choice{WaitDelayed: true}, "a, b, unit 1/2, unit 2/2, hand manual, late 1h0m0s, deploy, all"},
		{whole.Choice{Job: "deploy"}, "a, unit 2/2, deploy"},
		{whole.Choice{Job: "hand"}, "hand"},
		{whole.Choice{Job: "unit"}, "a, unit 1/2, unit 2/2"},
		{whole.Choice{Job: "all", Skip: []string{"unit", "late"}}, "a, b, hand manual, all"},
		{whole.Choice{Stages: []string{"test"}, Manual: []string{"hand"}}, "unit 1/2, unit 2/2, hand, late"},
	} {
		p := planOf(t, text)
		require.NoError(t, p.Choose(c.choice))
		var got []string
		for _, n := range p.Graph.Nodes {
			name := n.Name
			if n.Manual {
				name += " manual"
			}
			if n.Delay > 0 {
				name += " " + n.Delay.String()
			}
			got = append(got, name)
		}
		require.Equal(t, c.want, strings.Join(got, ", "))
		require.Len(t, p.Left, 9-len(p.Jobs))
		_, err := pipeline.New(p.Graph)
		require.NoError(t, err)
	}
	for want, choice := range map[string]whole.Choice{
		`the pipeline has no job "depoy", did you mean "deploy"?`:          {Job: "depoy"},
		`there is no stage "tset", did you mean "test"?`:                   {Stages: []string{"tset"}},
		`the pipeline does not have the job "gone" (rules)`:                {Skip: []string{"gone"}},
		`the job "a" is not manual: it runs without being named`:           {Manual: []string{"a"}},
		`the pipeline has no job "xyzzy"; it has "a", "b", "unit", "hand"`: {Manual: []string{"xyzzy"}},
	} {
		require.ErrorContains(t, planOf(t, text).Choose(choice), want)
	}
}

// Jobs that start pipelines of other projects are left out, also in child pipelines, and the others do not wait for them.
func TestTriggersThatCannotRunAreLeftOut(t *testing.T) {
	tr := newTrial(t, files{
		"child.yml": "out: {trigger: group/other}\nc: {stage: deploy, script: [':']}\n" +
			"late: {script: [':'], when: delayed, start_in: 1 week}\n",
	})
	p := tr.read(`
make: {stage: build, script: ['echo "out: {trigger: g/p}" > made.yml; echo "d: {script: [x]}" >> made.yml'],
  artifacts: {paths: [made.yml]}}
out: {stage: build, trigger: {project: group/project}}
child: {trigger: {include: child.yml, strategy: depend}}
made: {trigger: {include: [{artifact: made.yml, job: make}], strategy: depend}, allow_failure: true}
after: {stage: deploy, needs: [out, child], script: [':']}
`)
	require.ErrorContains(t, whole.Check(p), "leave the job out by --skip, or all such jobs by --skip-trigger")
	require.NoError(t, p.Choose(whole.Choice{SkipTriggers: true}))
	report, err := whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.NoError(t, err)
	require.Equal(t, "make success, child success, made warning, after success, out left out (not chosen)", told(report))
	require.Equal(t, "late success, c success, out left out (not chosen)", told(report.Jobs[1].Child))
	require.Equal(t, "d failed, out left out (not chosen)", told(report.Jobs[2].Child))
}
