//go:build gitea

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

// Jobs that call workflows of their repository and of another one, one of them by another workflow, and a job that
// needs such jobs. Gitea's own runner runs them, too.
func TestCalledWorkflowsOfARealGitea(t *testing.T) {
	g := giteatest.Real(t)
	serveServers(t, 1, map[string]*giteatest.Gitea{"one": g})
	called := `
on:
  workflow_call:
    inputs: {word: {type: string, default: none}}
    outputs: {sum: {value: "${{ jobs.second.outputs.s }}"}}
jobs:
  first:
    runs-on: ubuntu-latest
    outputs: {f: "${{ steps.x.outputs.f }}"}
    steps:
    - run: echo "first ${{ inputs.word }} ${{ github.event_name }} [${{ secrets.WORD }}]"
    - {id: x, run: echo f=1 >> $GITHUB_OUTPUT}
  second:
    needs: first
    runs-on: ubuntu-latest
    outputs: {s: "${{ steps.x.outputs.s }}"}
    steps:
    - run: echo "second ${{ needs.first.outputs.f }}"
    - {id: x, run: 'echo "s=2${{ needs.first.outputs.f }}" >> $GITHUB_OUTPUT'}
`
	g.Repo("lib", map[string]string{".gitea/workflows/y.yml": called})
	r := g.Repo("caller", map[string]string{".gitea/workflows/y.yml": called, ".github/workflows/z.yml": `
on: workflow_call
jobs: {inner: {uses: ann/lib/.gitea/workflows/y.yml@main, with: {word: far}}}
`, ".gitea/workflows/ci.yml": `
on: workflow_dispatch
jobs:
  here:
    uses: ./.gitea/workflows/y.yml
    with: {word: "${{ matrix.word }}"}
    strategy: {matrix: {word: [one, two]}}
    secrets: inherit
  labelled: {runs-on: ubuntu-latest, uses: ./.github/workflows/z.yml}
  gone: {uses: ann/lib/.gitea/workflows/none.yml@main}
  after:
    needs: [here, labelled]
    runs-on: ubuntu-latest
    steps: [{run: 'echo "after ${{ needs.here.outputs.sum }} ${{ needs.here.result }} ${{ needs.labelled.result }}"'}]
`})
	r.Secret("WORD", "a-long-word")
	r.Dispatch("ci.yml", nil)
	jobs := r.Ended(5)
	said := map[string]string{}
	for name, job := range jobs {
		rows := r.Rows(job.ID)
		said[name] = job.Conclusion + ": " + strings.Join(rows, "|")
	}
	t.Logf("%q", said)
	logOf := func(job, word, secret string) string {
		return "success: stepmux: the job " + job + " / first|first " + word + " workflow_dispatch [" + secret +
			"]|stepmux: the job " + job + " / second|second 1|stepmux: the job has succeeded"
	}
	require.Equal(t, logOf("here (one)", "one", "[MASKED]"), said["here (one)"])
	require.Equal(t, logOf("here (two)", "two", "[MASKED]"), said["here (two)"])
	require.Equal(t, logOf("labelled / inner", "far", ""), said["labelled"])
	require.Equal(t, "success: after 21 success success|stepmux: the job has succeeded", said["after"])
	require.True(t, strings.HasPrefix(said["gone"],
		"failure: stepmux: the job calls ann/lib/.gitea/workflows/none.yml@main: the server has no file "+
			".gitea/workflows/none.yml of ann/lib at "), said["gone"])
	require.False(t, slices.Contains(r.Steps(jobs["here (one)"]), "failure"))
}
