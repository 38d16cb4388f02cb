package replay

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

//stepmux:faults input | A tag of an action moves between a run and its replay
func TestActionsOfAWorkflowAreRepeatedByTheirCommit(t *testing.T) {
	mirror := t.TempDir()
	r := fetchtest.NewRepository(t, filepath.Join(mirror, "octo/greet"))
	action := func(text string) map[string]string {
		return map[string]string{
			"action.yml": "inputs: {who: {default: '${{ github.actor }}'}}\nruns:\n  using: composite\n  steps:\n" +
				"    - {shell: bash, run: 'echo " + text + " ${{ inputs.who }}; echo \"# done\" >> $GITHUB_STEP_SUMMARY'}\n",
		}
	}
	r.Commit("main", fetchtest.Texts(action("hello")))
	r.Git("tag", "v1", "main")
	tr := newTrial(t)
	tr.mirrors = map[string]string{"https://github.com/": mirror + "/"}
	j, err := standalone.Read(standalone.Source{
		Name: "test.yml", Format: standalone.GitHub, WorkDir: tr.work, Matrix: map[string]string{"os": "linux"},
		Text: []byte("on: push\njobs:\n  a-b:\n    strategy: {matrix: {os: [linux]}}\n    steps:\n" +
			"      - uses: octo/greet@v1\n" +
			"      - run: 'echo \"::warning file=x::${{ matrix.os }} ${{ secrets.KEY }}\"'\n"),
		Vars: []engine.Variable{{Key: "GITHUB_ACTOR", Value: "mona"}, {Key: "KEY", Value: "geheim-1234", Masked: true}},
	})
	require.NoError(t, err)
	first := tr.recordJob(j)
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	require.Equal(t, "hello mona\nWarning: linux [MASKED]\n", tr.log.String())
	require.Equal(t, trace.FromGitHub, first.Identity.Job.Source.Kind)
	steps := first.Identity.Steps[0].Steps
	require.Equal(t, "# done\n", steps[0].Steps[0].Summary.Value)
	require.Equal(t, "linux [MASKED]", steps[1].Annotations[0].Message)

	r.Commit("main", fetchtest.Texts(action("something else")))
	r.Git("tag", "--force", "v1", "main")
	elsewhere := newTrial(t) // another project, another cache
	elsewhere.mirrors = tr.mirrors
	key := func(c *Config) { c.Secrets = map[string]string{"KEY": "geheim-1234"} }
	elsewhere.requireSame(elsewhere.replay(first, key))
	require.True(t, strings.HasPrefix(elsewhere.log.String(), "hello mona\n"))
}

// The action of a step that did not run was not in the trace, but a replay fetches it with the others, and was refused.
func TestReplayHasTheActionsOfStepsThatDidNotRun(t *testing.T) {
	mirror := t.TempDir()
	r := fetchtest.NewRepository(t, filepath.Join(mirror, "octo/greet"))
	r.Commit("main", fetchtest.Texts(map[string]string{"action.yml": "runs: {using: composite, steps: []}\n"}))
	tr := newTrial(t)
	tr.mirrors = map[string]string{"https://github.com/": mirror + "/"}
	j, err := standalone.Read(standalone.Source{
		Name: "test.yml", Format: standalone.GitHub, WorkDir: tr.work,
		Text: []byte("jobs:\n  a:\n    steps:\n      - run: exit 1\n      - uses: octo/greet@main\n"),
	})
	require.NoError(t, err)
	first := tr.recordJob(j)
	require.Equal(t, trace.Skipped, first.Identity.Steps[0].Steps[1].Status)
	tr.requireSame(tr.replay(first))
}

func TestReplayReportsAChangedImage(t *testing.T) {
	project := func(digit string) *trial {
		tr := newTrial(t)
		tr.file("bin/docker", "#!/bin/sh\ncase $1 in\nimage) echo 'sha256:"+strings.Repeat(digit, 64)+" []';;\n"+
			"run) echo in the container;;\nesac\n")
		return tr
	}
	tr := project("1")
	j, err := standalone.Read(standalone.Source{
		Name: "test.yml", Format: standalone.GitHub, WorkDir: tr.work,
		Text: []byte("jobs:\n  a:\n    steps:\n      - run: chmod +x bin/docker; echo \"$PWD/bin\" >> \"$GITHUB_PATH\"\n" +
			"      - uses: docker://x:1\n"),
	})
	require.NoError(t, err)
	first := tr.recordJob(j)
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	require.Contains(t, tr.log.String(), "in the container\n")
	same := project("1")
	same.requireSame(same.replay(first))
	require.False(t, project("2").replay(first).Same)
}
