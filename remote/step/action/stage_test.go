package action

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// staged returns a trial with the actions octo/bad and octo/good, whose stages tell their names. The pre stage of
// octo/bad fails.
func staged(t *testing.T) *trial {
	t.Helper()
	mirror := t.TempDir()
	for name, end := range map[string]string{"bad": "exit 3", "good": "exit 0"} {
		repository(t, mirror, "octo/"+name, "v1", map[string]string{
			"action.yml": "runs: {using: node20, pre: pre.sh, main: main.sh, post: post.sh}\n",
			"pre.sh":     "echo \"pre " + name + "$IN_STEP\"; echo s=saved >> \"$GITHUB_STATE\"; " + end + "\n",
			"main.sh":    "echo main " + name + "\n",
			"post.sh":    "echo \"post " + name + " $STATE_s\"\n",
		})
	}
	tr := newTrial(t)
	tr.action.Node = needs(t, "sh")
	tr.remotes(mirror)
	return tr
}

// Symptom: the action of a failed pre stage could not clean up, and neither steps with always() nor the pre and post
// stages of other actions ran.
func TestPostStageFollowsAPreStageThatFails(t *testing.T) {
	tr := staged(t)
	tr.workflow("- uses: octo/bad@v1\n- uses: octo/good@v1\n- run: echo never\n- if: always()\n  run: echo always ${{ " +
		"job.status }}\n")
	res := tr.fail(`step "pre": exec: exit status 3`)
	require.Equal(t, 3, res.ExitCode)
	require.Equal(t, "pre bad\npre good\nalways failure\npost good saved\npost bad saved\n", tr.log.String())
	require.Equal(t, engine.Skipped, res.Steps[0].Steps[1].Status)

	for name, tr := range map[string]*trial{
		"list":      staged(t).steps("- {name: a, action: octo/bad@v1}\n- {name: b, script: echo never}\n"),
		"composite": staged(t).workflow("- uses: ./c\n- run: echo never\n"),
	} {
		tr.file("c/action.yml", composite+"    - uses: octo/bad@v1\n")
		require.Equal(t, 3, tr.fail("exit status 3").ExitCode, name)
		require.Equal(t, "pre bad\npost bad saved\n", tr.log.String(), name)
	}
}

// As on GitHub, the post stage belongs to each action of which a stage has begun, and the last to begin ends first.
func TestPostStageFollowsAPreStageWhoseStepIsSkipped(t *testing.T) {
	tr := staged(t)
	tr.file("p/action.yml", "runs: {using: node20, main: m.sh, post: p.sh}\n")
	tr.file("p/m.sh", "")
	tr.file("p/p.sh", "echo post p")
	tr.workflow("- uses: ./p\n- {if: false, uses: octo/good@v1}\n- uses: octo/good@v1\n").succeed()
	require.Equal(t, "pre good\npre good\nmain good\npost p\npost good saved\npost good saved\n", tr.log.String())
}

// As on GitHub, an empty pre or post is no stage. Symptom: node ran the directory of the action, and failed.
func TestEmptyStageIsMissing(t *testing.T) {
	tr := staged(t)
	tr.file("p/action.yml", "runs: {using: node20, pre: '', main: m.sh, post: ''}\n")
	tr.file("p/m.sh", "echo main")
	require.Empty(t, tr.workflow("- uses: ./p\n").succeed().Steps[0].Steps[0].Steps)
	require.Equal(t, "main\n", tr.log.String())
}

// Symptom: an action with a pre stage got each of them twice.
func TestWarningsAboutInputsComeOnce(t *testing.T) {
	mirror := t.TempDir()
	repository(t, mirror, "octo/warns", "v1", map[string]string{
		"action.yml": "inputs: {old: {deprecationMessage: use new}, must: {required: true}}\n" +
			"runs: {using: node20, pre: x.sh, main: x.sh}\n",
		"x.sh": "",
	})
	want := []string{
		`the input "old" is deprecated: use new`, `the input "must" is required, and is not given`,
		"Unexpected input(s) 'odd', valid inputs are [old, must]",
	}
	tr := newTrial(t)
	tr.action.Node = needs(t, "sh")
	tr.remotes(mirror)
	res := tr.workflow("- {uses: octo/warns@v1, with: {old: a, odd: b}}\n").succeed()
	require.Equal(t, want, res.Steps[0].Steps[0].Warnings)
	res = tr.steps("- {name: a, action: octo/warns@v1, inputs: {old: a, odd: b}}\n").succeed()
	require.Equal(t, want, res.Steps[0].Warnings)
}

// The pre stage of an action did not have the env of its step.
func TestPreStageHasTheEnvOfItsStep(t *testing.T) {
	tr := staged(t)
	tr.workflow("- {uses: octo/good@v1, env: {IN_STEP: ' with env'}}\n").succeed()
	require.Equal(t, "pre good with env\nmain good\npost good saved\n", tr.log.String())
}

// As on GitHub, continue-on-error is that of all stages of a step. Symptom: a pre stage that may fail failed the job.
func TestContinueOnErrorCoversPreAndPostStages(t *testing.T) {
	tr := staged(t)
	tr.workflow("- {uses: octo/bad@v1, continue-on-error: '${{ 1 == 1 }}'}\n- run: echo next\n").succeed()
	require.Equal(t, "pre bad\nmain bad\nnext\npost bad saved\n", tr.log.String())

	tr = staged(t)
	tr.file("c/action.yml", composite+"    - {uses: octo/bad@v1, continue-on-error: true}\n")
	tr.workflow("- uses: ./c\n- run: echo next\n").succeed()
	require.Equal(t, "pre bad\nmain bad\nnext\npost bad saved\n", tr.log.String())

	tr = staged(t)
	tr.file("p/action.yml", "runs: {using: node20, main: m.sh, post: p.sh}\n")
	tr.file("p/m.sh", "")
	tr.file("p/p.sh", "exit 4")
	tr.workflow("- {uses: ./p, continue-on-error: true}\n").succeed()
	require.Equal(t, 4, tr.workflow("- uses: ./p\n").fail("exit status 4").ExitCode)

	tr = staged(t)
	tr.workflow("- {uses: octo/bad@v1, continue-on-error: '${{ fromJSON(env.X) }}'}\n- run: echo never\n")
	tr.fail("continue-on-error: ")
}
