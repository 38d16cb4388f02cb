package githubpipeline_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// trial is a workflow under test.
type trial struct {
	t   testing.TB
	cfg whole.Config
	src standalone.Source

	mu     sync.Mutex // guards the following
	logs   map[string]*bytes.Buffer
	said   []string
	onLine func(line string) // is called with what a job writes
}

func newTrial(t testing.TB) *trial {
	t.Helper()
	tr := &trial{t: t, logs: map[string]*bytes.Buffer{}}
	tr.cfg = whole.Config{
		Config: standalone.Config{WorkDir: t.TempDir(), TempDir: t.TempDir(), CacheDir: t.TempDir(), Grace: time.Minute},
		Slots:  4, Output: tr.output, Say: func(line string) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.said = append(tr.said, line)
		},
	}
	tr.src = standalone.Source{Name: "ci.yml", Format: standalone.GitHub, WorkDir: tr.cfg.WorkDir}
	return tr
}

func (tr *trial) output(job string) (stdout, stderr io.Writer, end func()) {
	write := writer(func(p []byte) (int, error) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if tr.logs[job] == nil {
			tr.logs[job] = &bytes.Buffer{}
		}
		if tr.onLine != nil {
			tr.onLine(string(p))
		}
		return tr.logs[job].Write(p)
	})
	return write, write, func() {}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// read reads a workflow.
func (tr *trial) read(text string) (*whole.Pipeline, error) {
	tr.t.Helper()
	tr.src.Text = []byte(text)
	p, _, err := githubpipeline.Read(tr.src)
	return p, err
}

// run runs a workflow to its end, and requires that nothing of it is left.
func (tr *trial) run(ctx context.Context, text string) *whole.Report {
	tr.t.Helper()
	p, err := tr.read(text)
	require.NoError(tr.t, err)
	report, err := whole.Run(ctx, tr.t.Context(), p, tr.cfg)
	require.NoError(tr.t, err)
	left, err := os.ReadDir(tr.cfg.TempDir)
	require.NoError(tr.t, err)
	require.Empty(tr.t, left)
	return report
}

// told returns the states of all jobs.
func told(r *whole.Report) string {
	var list []string
	for _, j := range r.Jobs {
		text := j.Name + " " + j.Status
		if j.Why != "" && !strings.HasPrefix(j.Why, `step "`) {
			text += " (" + j.Why + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// lines are the lines that a job prints with "echo said ...".
func (tr *trial) lines(job string) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.logs[job] == nil {
		return "no log"
	}
	var list []string
	for line := range strings.Lines(tr.logs[job].String()) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "said "); ok {
			list = append(list, text)
		}
	}
	return strings.Join(list, "; ")
}

// job is a job that runs a command, with more keys.
func job(keys, command string) string {
	if keys != "" {
		keys += ", "
	}
	return fmt.Sprintf("{%ssteps: [{run: %q}]}", keys, command)
}

// The if of each job decides after its needs, which are a diamond: a, then b and c, then d.
func TestConditionsAfterOutcomesOfADiamond(t *testing.T) {
	for name, tt := range map[string]struct{ a, b, c, d, want string }{
		"all succeed": {"", "", "", "", "a success, b success, c success, d success"},
		"one fails": {
			"", "exit 3", "", "",
			`a success, b failed, c success, d skipped ("b": failure)`,
		},
		"the first fails": {
			"exit 1", "", "", "",
			`a failed, b skipped ("a": failure), c skipped ("a": failure), d skipped ("b": skipped)`,
		},
		"always": {
			"", "exit 1", "", "if: always()",
			"a success, b failed, c success, d success",
		},
		"failure": {
			"", "exit 1", "", "if: failure()",
			"a success, b failed, c success, d success",
		},
		"failure of an ancestor": {
			"exit 1", "if: always()", "if: always()", "if: failure()",
			"a failed, b success, c success, d success",
		},
		"no failure": {
			"", "", "", "if: failure()",
			"a success, b success, c success, d skipped (its if is false)",
		},
		"not cancelled": {
			"", "exit 1", "", `if: "!cancelled()"`,
			"a success, b failed, c success, d success",
		},
		"cancelled": {
			"", "exit 1", "", "if: cancelled()",
			"a success, b failed, c success, d skipped (its if is false)",
		},
		"a skipped ancestor": {
			"if: false", "if: always()", "if: always()", "",
			"a skipped (its if is false), b success, c success, d skipped (a job before its needs has not succeeded)",
		},
		"a skipped need": {
			"", "if: github.event_name == 'none'", "", "",
			`a success, b skipped (its if is false), c success, d skipped ("b": skipped)`,
		},
		"a skipped need, allowed": {
			"", "if: false", "", "if: \"!failure() && !cancelled() && needs.b.result == 'skipped'\"",
			"a success, b skipped (its if is false), c success, d success",
		},
		"by name": {
			"", "exit 1", "", `if: "success('c') && failure('b', 'c') && !success('b')"`,
			"a success, b failed, c success, d success",
		},
		"results": {
			"", "exit 1", "", `if: "always() && contains(needs.*.result, 'failure') && needs.c.result == 'success'"`,
			"a success, b failed, c success, d success",
		},
		"a condition without a status function": {
			"", "exit 1", "", "if: needs.b.result == 'failure'",
			`a success, b failed, c success, d skipped ("b": failure)`,
		},
		"continue on error": {
			"", "continue-on-error: true, exit 1", "", "if: needs.b.result == 'success'",
			"a success, b warning, c success, d success",
		},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(spec, needs string) string {
				keys, command := spec, "true"
				if i := strings.Index(spec, "exit "); i >= 0 {
					keys, command = strings.TrimSuffix(spec[:i], ", "), spec[i:]
				}
				if needs != "" {
					keys = strings.TrimSuffix("needs: "+needs+", "+keys, ", ")
				}
				return job(keys, command)
			}
			tr := newTrial(t)
			report := tr.run(t.Context(), "on: push\njobs:\n  a: "+of(tt.a, "")+"\n  b: "+of(tt.b, "a")+"\n  c: "+
				of(tt.c, "[a]")+"\n  d: "+of(tt.d, "[b, c]")+"\n")
			require.Equal(t, tt.want, told(report))
			wantStatus := whole.Success
			if strings.Contains(tt.want, "failed") {
				wantStatus = whole.Failure
			}
			require.Equal(t, wantStatus, report.Status)
		})
	}
}

func TestOutputsReachTheJobsThatNeedThem(t *testing.T) {
	tr := newTrial(t)
	tr.src.Vars = []engine.Variable{{Key: "TOKEN", Value: "geheim-1234", Masked: true}}
	report := tr.run(t.Context(), `
on: push
jobs:
  a:
    outputs:
      plain: ${{ steps.s.outputs.x }}
      list: "[1, 2]"
      empty: ""
      open: ${{ github.job }} ${{ '${{' }}
      secret: x${{ secrets.TOKEN }}
    steps:
      - id: s
        run: echo "x=a b" >> "$GITHUB_OUTPUT"
  fails:
    outputs: {made: "${{ steps.s.outputs.x }}"}
    steps:
      - id: s
        run: echo "x=yes" >> "$GITHUB_OUTPUT"; exit 3
  b:
    needs: [a]
    env: {FROM: "${{ needs.a.outputs.plain }}", OPEN: "${{ needs.a.outputs.open }}"}
    steps:
      - run: echo "said $FROM / ${{ needs.a.result }} / ${{ fromJSON(needs.a.outputs.list)[1] }} / $OPEN"
      - run: echo "said [${{ needs.a.outputs.secret }}] [${{ needs.a.outputs.empty }}] $GITHUB_JOB"
  c:
    needs: [b, fails]
    if: always()
    steps:
      - run: echo said ${{ join(needs.*.result) }} ${{ needs.fails.outputs.made }} ${{ toJSON(needs.b.outputs) }}
`)
	require.Equal(t, "a success, fails failed, b success, c success", told(report))
	require.Equal(t, 3, report.ExitCode)
	require.Equal(t, `a b / success / 2 / a ${{; [] [] b`, tr.lines("b"))
	require.Equal(t, "success,failure yes {}", tr.lines("c"))
	require.Equal(t, []string{`a: the output "secret" is left out: it contains a secret`}, tr.said)
}

// The example of GitHub's documentation: each build of a matrix sets another output.
func TestOutputsOfAMatrixAreJoined(t *testing.T) {
	tr := newTrial(t)
	tr.run(t.Context(), `
on: push
jobs:
  job1:
    strategy: {matrix: {version: [1, 2, 3]}}
    outputs:
      output_1: ${{ steps.gen_output.outputs.output_1 }}
      output_2: ${{ steps.gen_output.outputs.output_2 }}
      output_3: ${{ steps.gen_output.outputs.output_3 }}
    steps:
      - id: gen_output
        run: echo "output_${{ matrix.version }}=${{ matrix.version }}" >> "$GITHUB_OUTPUT"
  job2:
    needs: [job1]
    steps: [{run: "echo said ${{ join(needs.job1.outputs.*, '-') }} ${{ needs.job1.result }}"}]
`)
	require.Equal(t, "1-2-3 success", tr.lines("job2"))
}

func TestMatrixOfOutputsIsKnownWhenTheNeedsHaveEnded(t *testing.T) {
	tr := newTrial(t)
	report := tr.run(t.Context(), `
on: push
jobs:
  plan:
    outputs:
      list: '["x", "y"]'
      whole: '{"include": [{"os": "linux", "go": 1.30}]}'
      most: 1
      bad: '{"a": 1}'
      many: ${{ steps.s.outputs.many }}
    steps:
      - id: s
        run: echo "many=[$(seq -s, 257)]" >> "$GITHUB_OUTPUT"
  list:
    needs: plan
    strategy:
      max-parallel: ${{ fromJSON(needs.plan.outputs.most) }}
      matrix: {v: "${{ fromJSON(needs.plan.outputs.list) }}"}
    steps: [{run: "echo said ${{ matrix.v }} ${{ join(strategy.*) }}"}]
  whole:
    needs: plan
    strategy: {matrix: "${{ fromJSON(needs.plan.outputs.whole) }}"}
    steps: [{run: 'echo said ${{ matrix.os }} ${{ matrix.go }}'}]
  bad:
    needs: plan
    strategy: {matrix: {v: "${{ fromJSON(needs.plan.outputs.bad) }}"}}
    steps: [{run: echo}]
  many:
    needs: plan
    strategy: {matrix: {v: "${{ fromJSON(needs.plan.outputs.many) }}"}}
    steps: [{run: echo}]
  after: {needs: bad, if: failure(), steps: [{run: 'echo said ${{ needs.bad.result }}'}]}
`)
	require.Equal(t, "plan success, list (x) success, list (y) success, whole (1.3, linux) success, bad failed, "+
		"many failed, after success", told(report))
	require.Equal(t, "x true,0,2,1", tr.lines("list (x)"))
	require.Equal(t, "y true,1,2,1", tr.lines("list (y)"))
	require.Equal(t, "linux 1.3", tr.lines("whole (1.3, linux)"))
	require.Equal(t, "failure", tr.lines("after"))
	require.Equal(t, []any{whole.Failure, 2}, []any{report.Status, report.ExitCode})
	slices.Sort(tr.said)
	require.Equal(t, []string{
		"bad: ci.yml:26:28: v of the matrix must be a list, not a mapping",
		"many: ci.yml:30:24: the matrix has more than 256 combinations, which GitHub refuses; split the job",
	}, tr.said)
}

func TestFailFastCancelsTheOtherBuilds(t *testing.T) {
	text := func(keys string) string {
		return `
on: push
jobs:
  a:
    strategy: {` + keys + `matrix: {v: [1, 2, 3]}}
    continue-on-error: ${{ matrix.v == 3 }}
    steps:
      - {if: matrix.v == 1, run: sleep 0.2; exit 4}
      - {if: matrix.v == 3, run: exit 5}
      - run: sleep 600
        timeout-minutes: ${{ fromJSON('0.01') }}
        continue-on-error: true
      - run: sleep 2; echo said slow
  b: {needs: a, if: always(), steps: [{run: 'echo said ${{ needs.a.result }}'}]}
`
	}
	tr := newTrial(t)
	report := tr.run(t.Context(), text(""))
	require.Equal(t, `a (1) failed, a (2) cancelled ("a (1)" failed), a (3) warning, b success`, told(report))
	require.Equal(t, []any{4, "failure"}, []any{report.ExitCode, tr.lines("b")})

	tr = newTrial(t)
	report = tr.run(t.Context(), text("fail-fast: false, "))
	require.Equal(t, `a (1) failed, a (2) success, a (3) warning, b success`, told(report))
	require.Equal(t, "slow", tr.lines("a (2)"))
}

// As on GitHub, a job that takes too long counts as cancelled in expressions.
func TestJobsHaveTimeLimits(t *testing.T) {
	tr := newTrial(t)
	report := tr.run(t.Context(), `
on: push
jobs:
  a: {timeout-minutes: "${{ fromJSON('0.01') }}", steps: [{run: sleep 600}]}
  b: {needs: a, if: always() && !failure(), steps: [{run: 'echo said ${{ needs.a.result }}'}]}
  c: {timeout-minutes: "${{ fromJSON('0.01') }}", continue-on-error: true, steps: [{run: sleep 600}]}
  d: {needs: c, steps: [{run: 'echo said ${{ needs.c.result }}'}]}
`)
	require.Equal(t, "a cancelled (timed out), b success, c warning (timed out), d success", told(report))
	require.Equal(t, []any{whole.Cancelled, 124, "cancelled", "success"},
		[]any{report.Status, report.ExitCode, tr.lines("b"), tr.lines("d")})
	require.Equal(t, []int{124, 124}, []int{*report.Jobs[0].ExitCode, *report.Jobs[2].ExitCode})

	report = newTrial(t).run(t.Context(), `
on: push
jobs:
  a: {timeout-minutes: "${{ fromJSON('0.01') }}", steps: [{run: sleep 600}]}
  b: {needs: a, if: always(), steps: [{run: exit 5}]}
`)
	require.Equal(t, "a cancelled (timed out), b failed", told(report))
	require.Equal(t, []any{whole.Failure, 5}, []any{report.Status, report.ExitCode}, "the first that failed")
}

// A run that is cancelled stops the jobs that run, unless their if still holds, and starts those whose if holds.
func TestACancelledRunRunsWhatItsConditionsAllow(t *testing.T) {
	tr := newTrial(t)
	ctx, cancel := context.WithCancel(t.Context())
	waits := 0
	tr.onLine = func(line string) {
		if waits += strings.Count(line, "ready"); waits == 2 {
			cancel()
		}
	}
	report := tr.run(ctx, `
on: push
jobs:
  stops: {steps: [{run: echo ready; sleep 600}, {if: always(), run: echo said always}]}
  keeps: {if: always(), steps: [{run: echo ready; sleep 1; echo said done}]}
  after: {needs: [stops, keeps], steps: [{run: "true"}]}
  cancelled: {needs: [stops, keeps], if: cancelled(), steps: [{run: "echo said ${{ join(needs.*.result) }}"}]}
  failure: {needs: [stops], if: failure(), steps: [{run: "true"}]}
  polite: {needs: [stops], if: "!cancelled()", steps: [{run: "true"}]}
  always: {needs: [after], if: always(), steps: [{run: "echo said ${{ needs.after.result }}"}]}
`)
	require.Equal(t, "stops cancelled (cancelled), keeps success, after cancelled (cancelled), cancelled success, "+
		"failure cancelled (cancelled), polite cancelled (cancelled), always success", told(report))
	require.Equal(t, whole.Cancelled, report.Status)
	require.Equal(t, []string{"always", "done", "success,cancelled", "cancelled"},
		[]string{tr.lines("stops"), tr.lines("keeps"), tr.lines("cancelled"), tr.lines("always")})
}

// When all jobs are killed, those that always run end too, and no others start.
func TestAKilledRunEnds(t *testing.T) {
	tr := newTrial(t)
	ctx, cancel := context.WithCancel(t.Context())
	abort, kill := context.WithCancel(t.Context())
	tr.onLine = func(line string) {
		if strings.Contains(line, "ready") {
			cancel()
			kill()
		}
	}
	p, err := tr.read(`
on: push
jobs:
  keeps: {if: always(), strategy: {matrix: {v: [1, 2]}}, steps: [{run: trap '' INT TERM; echo ready; sleep 600}]}
  after: {needs: keeps, if: always(), steps: [{run: echo said ran}]}
`)
	require.NoError(t, err)
	tr.cfg.Slots = 1
	report, err := whole.Run(ctx, abort, p, tr.cfg)
	require.NoError(t, err)
	require.Equal(t, "keeps (1) cancelled (cancelled), keeps (2) cancelled (cancelled), after cancelled (cancelled)",
		told(report))
	require.Equal(t, "no log", tr.lines("after"))
}

func TestJobsOfAConcurrencyGroup(t *testing.T) {
	tr := newTrial(t)
	report := tr.run(t.Context(), `
name: n
on: push
jobs:
  a:
    strategy: {max-parallel: 1, matrix: {v: [1, 2]}}
    concurrency: ${{ github.workflow }}-${{ matrix.v }}
    steps: [{run: echo said ran}]
  b:
    strategy: {fail-fast: false, matrix: {v: [1, 2, 3]}}
    concurrency: {group: G, cancel-in-progress: false}
    steps: [{run: sleep 1; echo said ran}]
  c: {needs: b, if: always(), steps: [{run: 'echo said ${{ needs.b.result }}'}]}
`)
	replaced := "cancelled (a newer job of its concurrency group took its place)"
	got := told(report)
	require.Equal(t, 1, strings.Count(got, replaced), got)
	require.Equal(t, 5, strings.Count(got, "success"), got)
	require.Equal(t, "cancelled", tr.lines("c"))
	require.Equal(t, []any{whole.Cancelled, 125}, []any{report.Status, report.ExitCode})
}

func TestEachJobHasItsOwnDirectory(t *testing.T) {
	tr := newTrial(t)
	require.NoError(t, os.WriteFile(filepath.Join(tr.cfg.WorkDir, "f"), []byte("text\n"), 0o600))
	tr.cfg.Files = []string{"f"}
	report := tr.run(t.Context(), `
on: push
env: {A: workflow}
defaults: {run: {shell: bash}}
jobs:
  a: {env: {B: "${{ env.A }} job"}, steps: [{uses: actions/checkout@v4}, {run: echo said $B; rm f; touch g}]}
  b: {needs: a, steps: [{run: 'echo said $(ls) $PWD; test "$PWD" = "$GITHUB_WORKSPACE"; [[ -n $GITHUB_RUN_ID ]]'}]}
`)
	require.Equal(t, "a success, b success", told(report))
	require.Equal(t, "workflow job", tr.lines("a"))
	require.Regexp(t, "^f "+tr.cfg.TempDir, tr.lines("b"))
	require.FileExists(t, filepath.Join(tr.cfg.WorkDir, "f"))
	require.Equal(t, []string{"a", "b"}, report.CriticalPath)
}
