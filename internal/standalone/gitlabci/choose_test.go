package gitlabci

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pipeline"
)

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
		choice Choice
		want   string
	}{
		{Choice{}, "a, b, unit 1/2, unit 2/2, hand manual, late, deploy, all"},
		{Choice{WaitDelayed: true}, "a, b, unit 1/2, unit 2/2, hand manual, late 1h0m0s, deploy, all"},
		{Choice{Job: "deploy"}, "a, unit 2/2, deploy"},
		{Choice{Job: "hand"}, "hand"},
		{Choice{Job: "unit"}, "a, unit 1/2, unit 2/2"},
		{Choice{Job: "all", Skip: []string{"unit", "late"}}, "a, b, hand manual, all"},
		{Choice{Stages: []string{"test"}, Manual: []string{"hand"}}, "unit 1/2, unit 2/2, hand, late"},
	} {
		p := planOf(t, text, Config{})
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
	for want, choice := range map[string]Choice{
		`the pipeline has no job "depoy", did you mean "deploy"?`:          {Job: "depoy"},
		`there is no stage "tset", did you mean "test"?`:                   {Stages: []string{"tset"}},
		`the pipeline does not have the job "gone", by its rules`:          {Skip: []string{"gone"}},
		`the pipeline has no job "xyzzy"; it has "a", "b", "unit", "hand"`: {Manual: []string{"xyzzy"}},
	} {
		require.ErrorContains(t, planOf(t, text, Config{}).Choose(choice), want)
	}
}
