package githubpipeline_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// A resumed run has the outputs of the builds that succeeded, and runs the others, one by one.
func TestResumeRunsTheBuildsThatFailed(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.StateDir, tr.cfg.Name = filepath.Join(t.TempDir(), "p"), "ci.yml"
	const text = `
on: push
jobs:
  plan:
    outputs: {list: "${{ steps.s.outputs.list }}"}
    steps: [{id: s, run: 'echo "list=[1, 2]" >> "$GITHUB_OUTPUT"'}]
  test:
    needs: plan
    strategy: {fail-fast: false, matrix: {n: "${{ fromJSON(needs.plan.outputs.list) }}"}}
    outputs: {made1: "${{ steps.s.outputs.made1 }}", made2: "${{ steps.s.outputs.made2 }}"}
    steps: [{id: s, run: 'echo "made${{ matrix.n }}=n${{ matrix.n }}" >> "$GITHUB_OUTPUT"; test ${{ matrix.n }} != BAD'}]
  off: {if: false, steps: [{run: 'true'}]}
  use: {needs: test, steps: [{run: "echo said ${{ join(needs.test.outputs.*) }}"}]}
  apart: {needs: plan, if: always(), steps: [{run: echo said apart}]}
  clean: {needs: [test, off], if: failure(), steps: [{run: echo said clean}]}
  report: {needs: clean, if: always(), steps: [{run: 'echo said ${{ needs.clean.result }}; exit CODE'}]}
`
	file := func(bad, code string) string { return strings.NewReplacer("BAD", bad, "CODE", code).Replace(text) }
	report := tr.run(t.Context(), file("2", "0"))
	require.Equal(t, `plan success, test (1) success, test (2) failed, off skipped (its if is false), `+
		`use skipped ("test": failure), apart success, clean success, report success`, told(report))

	// Jobs behind one that runs again run again, too: also those that succeeded.
	tr.cfg.Resume = true
	clear(tr.logs)
	report = tr.run(t.Context(), file("0", "5"))
	require.Equal(t, `plan success (ran earlier), test (1) success (ran earlier), test (2) success, `+
		`off skipped (its if is false), use success, apart success (ran earlier), clean skipped (its if is false), `+
		`report failed`, told(report))
	require.Equal(t, []string{"n1,n2", "skipped", "no log", "no log"},
		[]string{tr.lines("use"), tr.lines("report"), tr.lines("apart"), tr.lines("test (1)")})

	// What such a job made in the first run does not count any more.
	clear(tr.logs)
	report = tr.run(t.Context(), file("0", "0"))
	require.Equal(t, `plan success (ran earlier), test (1) success (ran earlier), test (2) success (ran earlier), `+
		`off skipped (its if is false), use success (ran earlier), apart success (ran earlier), `+
		`clean skipped (its if is false), report success`, told(report))
	p, err := tr.read(file("0", "0"))
	require.NoError(t, err)
	_, err = whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.ErrorIs(t, err, whole.ErrNothingToResume, "all jobs have run")

	tr.cfg.Resume = false
	tr.run(t.Context(), file("2", "0"))
	tr.cfg.Resume = true
	p, err = tr.read(strings.Replace(file("0", "0"), "needs: plan, if", "needs: [plan, off], if", 1))
	require.NoError(t, err)
	_, err = whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.ErrorContains(t, err, "the jobs of the file, or their needs, have changed since the earlier run")
}
