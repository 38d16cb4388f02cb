package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestOutputIsShownInTheOrderItCameAbout(t *testing.T) {
	tr := newTrial(t)
	var text, want strings.Builder
	for i := range 30 {
		n := strconv.Itoa(i)
		text.WriteString("- {name: s" + n + ", script: 'echo out" + n + "; printf err" + n + " >&2'}\n")
		want.WriteString("<s" + n + " running>")
		want.WriteString("|<s" + n + " success>")
	}
	report := tr.finish(tr.steps(text.String()))
	require.Equal(t, "success", report.Status)
	// The two streams of one step have no order between them.
	got := tr.all.String()
	for i := range 30 {
		n := strconv.Itoa(i)
		a, b := "out"+n+"\nerr"+n+"<", "err"+n+"out"+n+"\n<"
		require.True(t, strings.Contains(got, a) != strings.Contains(got, b), got)
		got = strings.NewReplacer(a, "|<", b, "|<").Replace(got)
	}
	require.Equal(t, want.String(), got)
}

func TestMuchOutputIsShownUnchanged(t *testing.T) {
	tr := newTrial(t)
	tr.finish(tr.steps(`- script: "yes 0123456789 | head -c 3000000; echo; echo end >&2"`))
	require.Equal(t, strings.Repeat("0123456789\n", 3000000/11+1)[:3000000]+"\n", tr.stdout.String())
	require.Equal(t, "end\n", tr.stderr.String())
}

func TestReportHasTheTreeOfTheSteps(t *testing.T) {
	tr := newTrial(t)
	tr.file("greet/step.yml", `spec: {outputs: {said: {type: string}, secret: {type: string, sensitive: true}}}
---
run:
  - name: inner
    script: echo hi
outputs: {said: hi, secret: do-not-tell}
`)
	report := tr.finish(tr.steps(`- {name: a, step: ./greet}
- {name: b, script: exit 7}
- {name: c, script: echo never}
`))
	require.Equal(t, Script, report.Reason)
	require.Equal(t, new(7), report.ExitCode)
	require.Equal(t, `step "b": exec: exit status 7`, report.Message)
	require.Len(t, report.Steps, 3)
	require.Equal(t, []string{"success", "failure", "skipped"},
		[]string{report.Steps[0].Status, report.Steps[1].Status, report.Steps[2].Status})
	require.Equal(t, "inner", report.Steps[0].Steps[0].Name)
	data, err := report.JSON(false)
	require.NoError(t, err)
	require.Contains(t, string(data), `"outputs":{"said":"hi","secret":{"masked":true}}`)
	require.NotContains(t, string(data), "do-not-tell")
	require.NotContains(t, string(data), "0001-01-01", "a time that was not")
}

func TestMaskedVariablesAreInNoOutputAndNoReport(t *testing.T) {
	tr := newTrial(t)
	j := tr.read(Source{Name: "job.yml", Format: Steps, Text: []byte(`
- name: a
  script: |
    echo "it is ${{ vars.TOKEN }}"
    echo "${{ vars.TOKEN }}" >&2
    echo '{"name":"E","value":"x ${{ vars.TOKEN }}"}' >>${{ export_file }}
- name: b
  step: ./${{ vars.TOKEN }}
`), Vars: []engine.Variable{
		{Key: "TOKEN", Value: "hunter2-hunter2", Masked: true}, {Key: "PIN", Value: "123", Masked: true},
	}})
	require.Equal(t, []string{"the variable PIN is not masked: the value has less than 4 bytes"}, j.Notices)
	report := tr.finish(j)
	require.Equal(t, "failure", report.Status)
	data, err := report.JSON(true)
	require.NoError(t, err)
	require.NotContains(t, string(data)+tr.all.String(), "hunter2")
	require.Equal(t, "it is [MASKED]\n", tr.stdout.String())
	require.Contains(t, string(data), `"masked": true`)
}

func TestEndOfTheContextStopsTheJobWithItsGrace(t *testing.T) {
	tr := newTrial(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tr.stdout.On("started", cancel)
	report, err := tr.run(ctx, t.Context(), tr.steps(`
- {name: a, script: "trap 'echo ending; exit 1' TERM; echo started; while :; do sleep 0.01; done"}
- {name: b, script: echo not run}
- {name: c, script: echo cleaning, when: always}
`))
	require.NoError(t, err)
	require.Equal(t, Cancelled, report.Reason)
	require.Equal(t, "started\nending\ncleaning\n", tr.stdout.String())
}

func TestEndOfTheSecondContextKillsTheJob(t *testing.T) {
	tr := newTrial(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	abort, kill := context.WithCancel(t.Context())
	defer kill()
	tr.stdout.On("started", func() {
		tr.stdout.On("asked", kill)
		cancel()
	})
	report, err := tr.run(ctx, abort, tr.steps(`
- {name: a, script: "trap 'echo asked' TERM; echo started; while :; do sleep 0.01; done"}
- {name: c, script: echo cleaning, when: always}
`))
	require.NoError(t, err)
	require.Equal(t, Cancelled, report.Reason)
	require.NotContains(t, tr.stdout.String(), "cleaning")
}

func TestNoProcessOfAJobOutlivesIt(t *testing.T) {
	tr := newTrial(t)
	tr.finish(tr.steps(`- {script: "setsid sleep 600 >/dev/null 2>&1 & echo $!"}`))
	pid, err := strconv.Atoi(strings.TrimSpace(tr.stdout.String()))
	require.NoError(t, err)
	requireGone(t, pid)
}

func TestTimeoutIsAReasonOfItsOwn(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Timeout = 50 * time.Millisecond
	report := tr.finish(tr.steps(`- script: sleep 600`))
	require.Equal(t, TimedOut, report.Reason)
	require.Equal(t, "failure", report.Status)
}

func TestJobThatIsWrongIsFoundOutBeforeItsFirstStep(t *testing.T) {
	tr := newTrial(t)
	tr.file("s/step.yml", "spec: {inputs: {who: {type: string}}}\n---\nexec: {command: [echo]}\n")
	report := tr.finish(tr.steps("- {name: a, script: echo ran}\n- {name: b, step: ./s}\n"))
	require.Equal(t, Invalid, report.Reason)
	require.Contains(t, report.Message, `"who"`)
	require.Empty(t, tr.stdout.String())
}

// Symptom: a job that was refused, timed out or stopped had the exit code of a success.
func TestResultsHaveAnExitCodeOnlyWhereAScriptEnded(t *testing.T) {
	codes := func(report *Report) (codes []any) {
		data, err := json.Marshal(report)
		require.NoError(t, err)
		type result struct {
			ExitCode any `json:"exit_code"`
			Steps    []result
		}
		var got result
		require.NoError(t, json.Unmarshal(data, &got))
		codes = append(codes, got.ExitCode)
		for _, s := range got.Steps {
			codes = append(codes, s.ExitCode)
		}
		return codes
	}
	tr := newTrial(t)
	require.Equal(t, []any{7.0, 0.0, 7.0, nil}, codes(tr.finish(
		tr.steps("- {name: a, script: 'true'}\n- {name: b, script: exit 7}\n- {name: c, script: echo}\n"))))
	require.Equal(t, []any{nil}, codes(Refused(errors.New("no"))))
	tr.cfg.Timeout = time.Millisecond
	require.Nil(t, codes(tr.finish(tr.steps("- {name: a, script: 'true'}")))[0])
}

// brokenWriter accepts n bytes and then fails.
type brokenWriter struct{ n int }

func (b *brokenWriter) Write(p []byte) (int, error) {
	if b.n -= len(p); b.n < 0 {
		return 0, errors.New("nobody reads this")
	}
	return len(p), nil
}

func TestFailedOutputWriterStopsTheJob(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Stdout = &brokenWriter{n: 100}
	report, err := tr.run(t.Context(), t.Context(), tr.steps(`- script: "while :; do echo 0123456789; sleep 0.001; done"`))
	require.EqualError(t, err, "write the job's stdout: nobody reads this")
	require.Equal(t, Cancelled, report.Reason)
}

func TestTemporaryDirectoryThatIsMissingIsSaid(t *testing.T) {
	tr := newTrial(t)
	cfg := tr.cfg
	cfg.TempDir = filepath.Join(t.TempDir(), "missing")
	_, err := Run(t.Context(), t.Context(), tr.steps("- script: echo"), cfg)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAfterScriptAlwaysRunsAndDoesNotChangeTheResult(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		reason Reason
		code   int
		told   string
	}{
		"success": {"true", "", 0, "after success"},
		"failure": {"exit 3", Script, 3, "after failed"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t)
			report := tr.finish(tr.read(Source{Name: "ci.yml", Format: GitLabCI, Text: []byte(`
j:
  variables: {WHO: you}
  before_script: ["X=kept"]
  script: ['echo "$X $WHO $CI_JOB_NAME"', '` + test.script + `']
  after_script: ['echo "after $CI_JOB_STATUS [$X] $WHO"', exit 9]
`)}))
			require.Equal(t, test.reason, report.Reason, report.Message)
			require.Equal(t, &test.code, report.ExitCode)
			require.Equal(t, "$ X=kept\n$ echo \"$X $WHO $CI_JOB_NAME\"\nkept you j\n$ "+test.script+
				"\n$ echo \"after $CI_JOB_STATUS [$X] $WHO\"\n"+test.told+" [] you\n$ exit 9\n", tr.stdout.String(),
				"each command is shown before it runs")
			require.Equal(t, new(9), report.Steps[1].ExitCode)
		})
	}
}

func TestAfterScriptRunsAfterACancel(t *testing.T) {
	tr, report := cancelled(t, `
j:
  script: [echo started, sleep 600]
  after_script: ['echo "after $CI_JOB_STATUS"']
`)
	require.Equal(t, "$ echo started\nstarted\n$ sleep 600\n$ echo \"after $CI_JOB_STATUS\"\nafter canceled\n",
		tr.stdout.String())
	require.Equal(t, "success", report.Steps[1].Status)
}

func TestAfterScriptHasItsOwnLimitAfterACancelToo(t *testing.T) {
	_, report := cancelled(t, `
j:
  variables: {RUNNER_AFTER_SCRIPT_TIMEOUT: 50ms}
  script: [echo started, sleep 600]
  after_script: [sleep 600]
`)
	require.Contains(t, report.Steps[1].Message, "timeout")
}

// cancelled runs the job of a .gitlab-ci.yml, and cancels it when its script sleeps.
func cancelled(t *testing.T, text string) (*trial, *Report) {
	t.Helper()
	tr := newTrial(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tr.stdout.On("$ sleep 600", cancel) // it is shown before it runs
	report, err := tr.run(ctx, t.Context(), tr.read(Source{Name: "ci.yml", Format: GitLabCI, Text: []byte(text)}))
	require.NoError(t, err)
	require.Equal(t, Cancelled, report.Reason)
	return tr, report
}

func TestVariablesOfAJobOfStepsAreNotInTheEnvironment(t *testing.T) {
	tr := newTrial(t)
	tr.finish(tr.read(Source{Name: "ci.yml", Format: GitLabCI, Text: []byte(`
j:
  variables: {WHO: you}
  run:
    - {name: a, script: 'echo "[$WHO]"'}
    - {name: b, exec: {command: [echo, "${{ vars.WHO }} ${{ job.name }}"]}}
`), Vars: []engine.Variable{{Key: "WHO", Value: "${{ me }}\n- script: echo injected"}}}))
	require.Equal(t, "[]\n${{ me }}\n- script: echo injected j\n", tr.stdout.String())
}

// A script of a .gitlab-ci.yml had the content of a file variable in place of its path.
func TestAFileVariableIsAPathInTheScriptsOfAJob(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	tr.finish(tr.read(Source{Name: ".gitlab-ci.yml", Text: []byte(`
build:
  variables: {SAME: $KEY}
  script: ['cat "$KEY"; echo; echo "$SAME"']
`), Format: GitLabCI, Vars: []engine.Variable{{Key: "KEY", Value: "the text", File: true, Masked: true}}}))
	require.Contains(t, tr.stdout.String(), "\n[MASKED]\n")
	require.NotContains(t, tr.stdout.String(), "the text")
}

func TestErrorOfAnExpressionNamesTheFileAndTheLine(t *testing.T) {
	tr := newTrial(t)
	report := tr.finish(tr.steps("- name: a\n  script: |\n    echo one\n    echo ${{ vars.NOPE }}\n"))
	require.Equal(t, `step "a": job.yml:4:18: input "script": vars.NOPE was not found`, firstClause(report.Message))
	tr.file("more.yml", ".b:\n  run:\n  - name: b\n    script: echo ${{ vars.NOPE }}\n")
	for job, want := range map[string]string{
		"main":  `step "a": .gitlab-ci.yml:5:26: input "script": vars.NOPE was not found`,
		"other": `step "b": more.yml:4:26: input "script": vars.NOPE was not found`,
		"steps": `step "step_1": STEPS:1:24: input "script": vars.NOPE was not found`,
	} {
		report := tr.finish(tr.read(Source{Name: ".gitlab-ci.yml", Format: GitLabCI, JobName: job, Text: []byte(
			"include: {local: more.yml}\nmain:\n  run:\n  - name: a\n    script: echo ${{ vars.NOPE }}\nother: {extends: .b}\n" +
				"steps:\n  variables: {STEPS: '- script: echo ${{ vars.NOPE }}'}\n  script: /step-runner ci\n",
		)}))
		require.Equal(t, want, firstClause(report.Message))
	}
}

// firstClause is the part of a message before its remedy.
func firstClause(message string) string {
	first, _, _ := strings.Cut(message, ";")
	return first
}

func TestOutputsFromElsewhereAreThoseOfTheStep(t *testing.T) {
	var r Report
	r.SetStepOutputs(map[string]string{"a": "1"}, []string{"c", "b"})
	outputs, masked := r.StepOutputs()
	require.Equal(t, map[string]string{"a": "1"}, outputs)
	require.Equal(t, []string{"b", "c"}, masked)
	text, err := r.JSON(false)
	require.NoError(t, err)
	require.Contains(t, string(text), `"outputs":{"a":"1","b":{"masked":true},"c":{"masked":true}}`)
}
