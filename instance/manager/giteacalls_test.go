package manager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

// callTask returns a task that calls a workflow, as Gitea sends it.
func callTask(uses, rest string) giteatest.FakeTask {
	task := taskOf("")
	task.Workflow = "\"on\": push\njobs:\n    here:\n        name: here\n        runs-on: []\n        uses: " + uses +
		"\n" + rest
	task.RunsOn = nil
	return task
}

const calledText = `
on:
  workflow_call:
    inputs: {word: {type: string}}
    secrets: {PASSWORD: {required: true}}
    outputs:
      sum: {value: "${{ jobs.second.outputs.s }}"}
      word: {value: "${{ inputs.word }}"}
jobs:
  second:
    needs: first
    runs-on: ubuntu-latest
    outputs: {s: "${{ steps.x.outputs.s }}"}
    steps: [{id: x, run: 'echo "second ${{ needs.first.outputs.f }}"; echo s=2 >> $GITHUB_OUTPUT'}]
  first:
    runs-on: ubuntu-latest
    outputs: {f: "${{ steps.x.outputs.f }}"}
    steps:
    - {id: x, run: 'echo "first ${{ inputs.word }} ${{ secrets.PASSWORD }}"; echo f=1 >> $GITHUB_OUTPUT'}
    - {run: echo end, if: always()}
  no: {runs-on: ubuntu-latest, if: false, steps: [{run: echo no}]}
`

// A job that calls a workflow of its repository, which calls one of another repository: the logs of the jobs come one
// after the other, and the outputs are those of the workflow.
func TestAJobOfGiteaThatCallsAWorkflowRunsItsJobs(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	server.AddFile("ann/lib", strings.Repeat("b", 40), ".gitea/workflows/y.yml", calledText)
	server.AddFile("ann/demo", strings.Repeat("a", 40), ".gitea/workflows/x.yml", `
on: {workflow_call: {inputs: {word: {type: string}}, outputs: {sum: {value: "${{ jobs.inner.outputs.sum }}"}}}}
jobs:
  inner: {uses: ann/lib/.gitea/workflows/y.yml@main, with: {word: "${{ inputs.word }}"}, secrets: inherit}
  bad: {runs-on: ubuntu-latest, needs: inner, if: "inputs.word == 'bad'", steps: [{run: 'echo bad; exit 3'}]}
`)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	for word, result := range map[string]string{"good": "RESULT_SUCCESS", "bad": "RESULT_FAILURE"} {
		task := callTask("./.gitea/workflows/x.yml", "        with: {word: "+word+"}\n        secrets: inherit\n")
		task.Secrets = map[string]string{"PASSWORD": "a-long-secret"}
		got := d.ended(server.Add(task))
		require.Equal(t, result, got.Result, "%q", got.Rows)
		want := []string{
			"stepmux: the job here / inner / first", "first " + word + " [MASKED]", "end",
			"stepmux: the job here / inner / second", "second 1",
		}
		last := "stepmux: the job has succeeded"
		if word == "bad" {
			want = append(want, "stepmux: the job here / bad", "bad")
			last = "stepmux: the job failed: here / bad: step \"step_1\""
		}
		require.Equal(t, append(want, last), got.Rows)
		require.Equal(t, map[string]string{"sum": "2"}, got.Outputs)
		require.Empty(t, got.Steps)
		require.Equal(t, 1, got.Final)
	}
	require.Empty(t, d.m.KeptTasks(t, "gitea.test"))
}

// The files are not fetched again, and the order of the logs of the jobs stays the same when the next manager goes on.
func TestACalledWorkflowOutlivesItsManager(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	again := filepath.Join(t.TempDir(), "again")
	server.AddFile("ann/demo", strings.Repeat("a", 40), ".github/workflows/x.yml", `
on: workflow_call
jobs:
  slow: {runs-on: ubuntu-latest, steps: [{run: 'echo waits; while ! test -e `+again+`; do sleep 0.01; done; echo on'}]}
  fast: {runs-on: ubuntu-latest, steps: [{run: echo fast}]}
  last: {runs-on: ubuntu-latest, needs: slow, steps: [{run: echo last}]}
`)
	d := serveGitea(t, f, server)
	id := server.Add(callTask("./.github/workflows/x.yml", ""))
	d.reports(id, "waits")
	before := server.Task(id).Rows
	d.close()
	d.stop()
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	server.AddFile("ann/demo", strings.Repeat("a", 40), ".github/workflows/x.yml", "jobs: {}") // it was read before
	d = serveGitea(t, f, server)
	got := d.ended(id)
	require.Equal(t, "RESULT_SUCCESS", got.Result, "%q", got.Rows)
	require.Equal(t, before, got.Rows[:len(before)])
	rows := strings.Join(got.Rows, "|") + "|"
	for _, log := range []string{"slow|waits|on|", "fast|fast|", "last|last|"} {
		require.Equal(t, 1, strings.Count(rows, "stepmux: the job here / "+log), rows)
	}
	require.Len(t, got.Rows, 8)
}
