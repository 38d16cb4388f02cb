package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func validated(t *testing.T, file, text string, format Format, dir string) Verdict {
	t.Helper()
	return Validate(t.Context(), Source{Name: file, Text: []byte(text), Format: format, WorkDir: dir})
}

func TestValidateReportsMistakesWithTheirPlace(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		format     Format
		kind       string
		errors     []string
	}{
		"job": {"job.yml", "- script: a\n", Steps, "job", nil},
		"job, wrong": {
			"job.yml", "- scrpt: a\n", Steps, "job",
			[]string{`job.yml:1:3: unknown key "scrpt", did you mean "script"?`},
		},
		"step": {"greet.yml", "spec: {inputs: {a: {type: string}}}\n---\nexec: {command: [a]}\n", Steps, "step", nil},
		"step, wrong": {
			"func.yml", "spec: {}\n---\nrun: [{script: a}]\n", Steps, "step",
			[]string{"func.yml:3:7: the step has no name; in a definition every step has one"},
		},
		"step of one": {
			"step.yml", "run: [{name: a, script: a}]\n", Steps, "step",
			[]string{"step.yml:1:1: a step has two documents, its spec and its command or steps; write --- on a line " +
				"between them"},
		},
		"gitlab": {"ci.yml", "a: {script: [x]}\n", GitLabCI, "gitlab-ci", nil},
		"gitlab, wrong in two jobs": {
			"ci.yml", "a: {scrpt: [x]}\nb: {script: [x]}\nc: {run: [{when: now, script: a}]}\n",
			GitLabCI, "gitlab-ci",
			[]string{
				`ci.yml:1:5: unknown key "scrpt", did you mean "script"?`,
				"ci.yml:3:18: when is one of on_success, on_failure, always",
			},
		},
		"gitlab, empty": {
			"ci.yml", "", GitLabCI, "gitlab-ci",
			[]string{"ci.yml: the file is empty; write a job: a name, and below it script: or run:"},
		},
		"github": {
			"w.yml", "jobs: {a: {steps: [{run: x}]}, b: {uses: o/r/.github/workflows/x.yml@1}}\n", GitHub, "github", nil,
		},
		"github, a job that cannot run": {
			"w.yml", "jobs:\n  a: {steps: [{run: x}]}\n  b: {runs-on: x}\n", GitHub, "github",
			[]string{`w.yml:3:3: the job "b" has no steps`},
		},
		"github, an expression of a service": {
			"w.yml", "jobs:\n  a:\n    services: {d: {image: '${{ nope }}'}}\n    steps: [{run: x}]\n", GitHub, "github",
			[]string{"w.yml:3: d: image: Unrecognized named-value: 'nope'. Located at position 1 within expression: nope"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := validated(t, test.file, test.text, test.format, t.TempDir())
			require.Equal(t, test.kind, v.Kind)
			require.Equal(t, len(test.errors) == 0, v.Valid)
			var got []string
			for _, p := range v.Errors {
				got = append(got, p.String())
				require.NotEmpty(t, p.Where)
				require.Equal(t, strings.Contains(p.Where, ":"), p.Line > 0, p)
			}
			require.Equal(t, test.errors, got)
		})
	}
	v := Unreadable("x.yml", os.ErrNotExist)
	require.False(t, v.Valid)
	require.Equal(t, "file does not exist", v.Errors[0].String())
}

// A job whose first step is not there passed, though it can never run.
//
//stepmux:faults input | The check of a file passes what always fails: a step that is not there, a stage or a needed job
//stepmux:more that does not exist; it fails a legal file with a `trigger:` job
//stepmux:with internal/standalone/gitlabci.TestCheckUsesTheStagesAndJobsOfThePipeline
func TestValidateRefusesAStepThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "greet"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "greet", "func.yml"),
		[]byte("spec: {inputs: {who: {type: string}}}\n---\nexec: {command: [echo]}\n"), 0o600))
	const nosuch = "find step nosuch: it has neither func.yml nor step.yml: file does not exist"
	for text, want := range map[string]string{
		"- step: ./nosuch\n":                    `step "step_1": ` + nosuch,
		"- step: ./greet/no.yml\n":              `step "step_1": find step greet/no.yml: file does not exist`,
		"- {step: ./greet, inputs: {who: a}}\n": "",
		"- {step: ./greet, inputs: {woh: a}}\n": `step "step_1": the step takes no input "woh", did ` +
			`you mean "who"?`,
		"- {step: ./nosuch, if: env.A == \"b\"}\n":              "",
		"- {step: ./nosuch, when: on_failure}\n":                "",
		"- script: make steps\n- step: ./made\n":                "",
		"- run: [{step: ./nosuch}]\n":                           `step "step_1": step "step_1": ` + nosuch,
		"- {step: ./greet, inputs: {who: a}}\n- step: ./made\n": "",
		"- step: \"./${{ vars.NAME }}\"\n":                      "",
		"- step: git.example.com/steps@v1\n":                    "",
	} {
		v := validated(t, "job.yml", text, Steps, dir)
		var got []string
		for _, p := range v.Errors {
			got = append(got, strings.TrimPrefix(p.String(), "job.yml: "))
		}
		require.Equal(t, want, strings.Join(got, "\n"), text)
		require.Equal(t, want == "", v.Valid, text)
	}
	v := validated(t, ".gitlab-ci.yml", "a: {run: [{step: ./nosuch}]}\n", GitLabCI, dir)
	require.False(t, v.Valid)
	require.Equal(t, `.gitlab-ci.yml: job "a": step "step_1": `+nosuch, v.Errors[0].String())
	step := filepath.Join(dir, "outer.yml")
	text := "spec: {}\n---\nrun: [{name: a, step: ./greet, inputs: {who: b}}]\n"
	v = validated(t, step, text, Steps, t.TempDir())
	require.Empty(t, v.Errors, "the steps of a definition are beside it")
}

// A misspelled key of a workflow or of a job was left out without a word. Later, keys that GitHub has were taken
// for misspelled: those of a job that calls another workflow, and of services.
func TestValidateWarnsOfUnknownKeysInAWorkflow(t *testing.T) {
	text := "on: push\nenvs: {}\njobs:\n  a:\n    runs_on: x\n    timeout: 5\n    defaults: {run: {shel: sh}}\n" +
		"    services: {db: {image: x, port: 5, command: y, entrypoint: z}}\n    steps: [{run: x}]\n" +
		"  b: {need: a, steps: [{run: x}], with: {}}\n" +
		"  c: {with: {a: b}, secrets: inherit, uses: o/r/.github/workflows/c.yml@v1}\n" +
		"  d: {cancel-timeout-minutes: 5, steps: [{run: x}]}\ndescription: x\n"
	v := validated(t, "w.yml", text, GitHub, t.TempDir())
	require.True(t, v.Valid)
	var got []string
	for _, p := range v.Warnings {
		got = append(got, p.String())
	}
	const why = `: it has no effect, and GitHub refuses it`
	require.Equal(t, []string{
		`w.yml:2:1: unknown key "envs"` + why, `w.yml:5:5: unknown key "runs_on"` + why,
		`w.yml:6:5: unknown key "timeout"` + why, `w.yml:7:22: unknown key "shel"` + why,
		`w.yml:8:31: unknown key "port"` + why, `w.yml:10:7: unknown key "need"` + why,
		`w.yml:10:35: unknown key "with"` + why,
	}, got)
	require.Equal(t, 2, v.Warnings[0].Line)
}
