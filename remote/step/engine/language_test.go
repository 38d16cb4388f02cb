package engine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestExpressionsSeeTheNamesAroundThem(t *testing.T) {
	tr := newTrial(t, `
env: {LEVEL: "${{ env.BASE }}-job"}
run:
  - {name: a, script: 'echo "${{ env.LEVEL }} ${{ vars.WHO }} ${{ job.WHO }} ${{ job.id }} ${{
      job.project.full_path }} ${{ job.variables.WHO }}"'}
  - {name: b, script: 'echo ${{ env.OWN }}', env: {OWN: "${{ env.LEVEL }}-step", "${{ 'DY' + 'N' }}": "1"}}
  - {name: c, step: ./c, env: {FROM: call}, inputs: {seen: "${{ env.FROM }}"}}
  - {name: d, script: '[ "$PWD" = "${{ work_dir }}" ] && echo "[$WHO] [$DYN]"'}
`, func(c *Config) {
		c.Env = map[string]string{"BASE": "request"}
		c.Vars = []Variable{
			{Key: "WHO", Value: "you"},
			{Key: "CI_JOB_ID", Value: "7"},
			{Key: "CI_PROJECT_PATH", Value: "g/p"},
		}
	}).files(map[string]string{
		"c/step.yml": "spec: {inputs: {seen: {type: string}}}\n---\nenv: {FROM: definition, AND: '${{ env.FROM }}'}\n" +
			"exec: {command: [sh, -c, 'echo ${{ inputs.seen }} $FROM $AND']}\n",
	})
	tr.succeed()
	require.Equal(t, "request-job you you 7 g/p you\nrequest-job-step\ncall definition call\n[] []\n", tr.stdout.String())
}

func TestExpressionThatFailsNamesItsPlace(t *testing.T) {
	for step, want := range map[string]string{
		`script: 'echo ${{ env.UNDEFINED }}'`:                           `input "script": env.UNDEFINED was not found`,
		`script: 'echo ${{ vars.NAME.x }}'`:                             `input "script": `,
		`{script: x, env: {A: "${{ 1 / 0 }}"}}`:                         `env A: `,
		`{script: x, env: {"${{ 'a b' }}": x}}`:                         `env: the variable name "a b" is not valid`,
		`exec: {command: ["true", "${{ 'a' + 1 }}"]}`:                   `command, argument 1: `,
		`{exec: {command: ["true"], work_dir: "${{ env.UNDEFINED }}"}}`: `work_dir: env.UNDEFINED was not found`,
		`{script: x, if: env.UNDEFINED == "x"}`:                         `if: env.UNDEFINED was not found`,
		`{script: x, if: vars.NAME}`: `if: the expression gives a value of type ` +
			`string, and must give a boolean; compare it with something`,
		`{step: "${{ env.UNDEFINED }}"}`: `reference: env.UNDEFINED was not found`,
	} {
		t.Run(step, func(t *testing.T) {
			if step[0] != '{' {
				step = "{" + step + "}"
			}
			res := newTrial(
				t,
				"- "+strings.Replace(step, "{", "{name: a, ", 1),
				func(c *Config) { c.Vars = []Variable{{Key: "NAME", Value: "x"}} },
			).run()
			require.Equal(t, Failure, res.Status)
			require.Regexp(t, `^step "a": (job\.yml:1:\d+: )?`+regexp.QuoteMeta(want), res.Message)
			require.Equal(t, []string{"a failure"}, statuses(res.Steps))
		})
	}
}

// Symptom: the same job failed with another error each time.
func TestOfSeveralExpressionsThatFailTheFirstByNameIsReported(t *testing.T) {
	fields := ""
	for c := 'a'; c <= 'z'; c++ {
		fields += fmt.Sprintf("%c: '${{ vars.%c }}', ", c, c)
	}
	newTrial(t, "- {name: s, step: ./s, inputs: {o: {"+fields+"}}}\n").fail(
		`step "s": job.yml:1:49: input "o": vars.a was not found`)

	outputs := `{"outputs":{"a":` + strings.Repeat("[", 65) + strings.Repeat("]", 65)
	for c := 'b'; c <= 'z'; c++ {
		outputs += fmt.Sprintf(`,"%c":%s%s`, c, strings.Repeat("[", 65), strings.Repeat("]", 65))
	}
	newTrial(t, "- {name: d, step: ./d}\n").files(map[string]string{
		"d/step.yml": "spec: {outputs: delegate}\n---\n" +
			"exec: {command: [cp, '${{ step_dir }}/r.json', '${{ output_file }}']}\n",
		"d/r.json": outputs + "}}",
	}).fail(`step "d": read output file: output "a": the value is nested deeper than 64`)
}

func TestValuesAreNotExpandedAgain(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: "printf '%s\n' '${{ env.TRICK }}' '${{ vars.TRICK }}'"}
- {name: b, step: ./b, inputs: {v: "${{ env.TRICK }}"}}
`, func(c *Config) {
		c.Env = map[string]string{"TRICK": "${{ vars.SECRET }}"}
		c.Vars = []Variable{{Key: "TRICK", Value: "${{ vars.SECRET }}"}, {Key: "SECRET", Value: "leak"}}
	}).files(map[string]string{"b/step.yml": "spec: {inputs: {v: {type: string}}}\n---\nexec: {command: [echo, '${{ " +
		"inputs.v }}']}\n"})
	tr.succeed()
	require.Equal(t, strings.Repeat("${{ vars.SECRET }}\n", 3), tr.stdout.String())
}

// Other step runners paste values into YAML, so a newline in a value can add a step.
//
//stepmux:faults engine | A value with a newline adds a step
//stepmux:with remote/step/engine.TestValuesAreNotExpandedAgain
//stepmux:faults vulnerabilities | Values of a job become commands | they are data wherever they go
//stepmux:with remote/step/engine.TestValuesAreNotExpandedAgain
func TestValuesCannotAddSteps(t *testing.T) {
	const trick = "x'}\n- {name: more, script: 'echo injected'}\n# \"]}"
	tr := newTrial(t, `
- {name: a, script: 'printf "%s|" "$E"', env: {E: "${{ vars.TRICK }}"}}
- {name: b, step: ./b, inputs: {v: "${{ vars.TRICK }}"}}
`, func(c *Config) { c.Vars = []Variable{{Key: "TRICK", Value: trick}} }).
		files(map[string]string{"b/step.yml": "spec: {inputs: {v: {type: string}}}\n---\nexec: {command: [printf, '%s|', " +
			"'${{ inputs.v }}']}\n"})
	res := tr.succeed()
	require.Equal(t, trick+"|"+trick+"|", tr.stdout.String())
	require.Equal(t, []string{"a success", "b success"}, statuses(res.Steps))
}

func TestConditionSaysWhetherAStepRuns(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: echo a, if: "vars.N == 'x'"}
- {name: b, script: echo b, if: "${{ vars.N != 'x' }}"}
- {name: c, script: echo c, if: steps.b.status == "skipped" && steps.a.status == "success"}
- {name: d, script: echo d, if: false}
- {name: e, script: exit 1}
- {name: f, script: echo f, when: always, if: steps.e.status == "failure"}
- {name: g, script: echo g, when: on_failure, if: steps.e.status == "success"}
- {name: h, script: "echo ${{ steps.b.outputs.x }}", when: always}
`, func(c *Config) { c.Vars = []Variable{{Key: "N", Value: "x"}} })
	res := tr.run()
	require.Equal(t, []string{
		"a success", "b skipped", "c success", "d skipped", "e failure", "f success", "g skipped", "h failure",
	}, statuses(res.Steps))
	require.Equal(t, "a\nc\nf\n", tr.stdout.String())
	require.Contains(t, res.Steps[7].Message, "steps.b.outputs.x was not found")
}

func TestTimeoutEndsAStep(t *testing.T) {
	for name, job := range map[string]string{
		"of a script":  `- {name: a, script: "echo started; sleep 4731", timeout: 200ms}`,
		"of an exec":   `- {name: a, exec: {command: [sleep, "4731"], timeout: 200ms}}`,
		"the shortest": `- {name: a, exec: {command: [sleep, "4731"], timeout: 200ms}, timeout: 1h}`,
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, job+"\n- {name: b, script: echo not-run}\n- {name: c, script: echo cleanup, when: always}\n")
			res := tr.run()
			require.Equal(t, Failure, res.Status)
			require.False(t, res.TimedOut, "that is the job's")
			require.Regexp(
				t,
				`^step "a": timeout: the (step "a"|command) ran for longer than 200ms: exit status 143$`,
				res.Message,
			)
			require.Equal(t, 143, res.ExitCode)
			require.Equal(t, []string{"a failure", "b skipped", "c success"}, statuses(res.Steps))
		})
	}
}

func TestTimeoutOfASequenceEndsTheStepThatRuns(t *testing.T) {
	tr := newTrial(t, `
- name: outer
  timeout: 300ms
  run:
    - {name: b, script: sleep 4732}
    - {name: c, script: echo not-run}
    - {name: d, script: echo always, when: always}
- {name: after, script: echo after, when: always}
`)
	res := tr.fail(`step "outer": step "b": timeout: the step "outer" ran for longer than 300ms: exit status 143`)
	require.Equal(t, []string{"b failure", "c skipped", "d success"}, statuses(res.Steps[0].Steps))
	require.Equal(t, "always\nafter\n", tr.stdout.String())
}

func TestStepsThatRunAfterATimeoutHaveALimit(t *testing.T) {
	tr := newTrial(t, `
- name: outer
  timeout: 100ms
  run:
    - {name: a, script: sleep 4733}
    - {name: b, script: sleep 4733, when: always}
`, func(c *Config) { c.AlwaysLimit = 100 * time.Millisecond })
	res := tr.run()
	require.Equal(t, []string{"a failure", "b failure"}, statuses(res.Steps[0].Steps))
}

func TestTimeoutWaitsForTheGraceAndKills(t *testing.T) {
	tr := newTrial(t, `- {name: a, script: "trap '' TERM; sleep 4734; sleep 4734", timeout: 100ms}`,
		func(c *Config) { c.Grace = 50 * time.Millisecond })
	res := tr.run()
	// The shell may have been ended before it came to ignore SIGTERM.
	require.Regexp(t, `^step "a": timeout: the step "a" ran for longer than 100ms: exit status (137|143)$`, res.Message)
}

func TestStopInANestedListRunsStepsThatAlwaysRun(t *testing.T) {
	tr := newTrial(t, `
- name: outer
  run:
    - {name: a, script: echo ready; sleep 4735}
    - {name: b, script: echo not-run}
    - {name: c, script: echo inner cleanup, when: always}
- {name: rest, script: echo not-run}
- name: group
  when: always
  run:
    - {name: x, script: echo outer cleanup}
    - {name: y, script: exit 3}
    - {name: z, script: echo not-run}
`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, cancelled, res.Message)
	require.Equal(t, []string{"outer cancelled", "rest skipped", "group failure"}, statuses(res.Steps))
	require.Equal(t, []string{"a cancelled", "b skipped", "c success"}, statuses(res.Steps[0].Steps))
	require.Equal(t, []string{"x success", "y failure", "z skipped"}, statuses(res.Steps[2].Steps))
	require.Equal(t, "ready\ninner cleanup\nouter cleanup\n", tr.stdout.String())
}

func TestTimeoutOfTheJobReachesNestedSteps(t *testing.T) {
	tr := newTrial(
		t,
		`- {name: o, run: [{name: i, script: sleep 4736}, {name: j, script: x}]}`,
		func(c *Config) { c.Timeout = 2 * time.Second },
	)
	res := tr.run()
	require.Equal(t, Failure, res.Status)
	require.True(t, res.TimedOut)
	require.Equal(t, "timeout: the job ran for longer than 2s", res.Message)
	require.Equal(t, []string{"o failure"}, statuses(res.Steps))
}

func TestObserverSeesNestedSteps(t *testing.T) {
	var seen []string
	newTrial(t, `
- {name: o, run: [{name: i, script: "true"}, {name: j, script: x, if: false}]}
- {name: broken, step: ./nowhere}
`, func(c *Config) {
		c.Observe = func(r StepResult) {
			require.Nil(t, r.Steps)
			seen = append(seen, strings.Join(r.Path, "/")+" "+r.Status.String())
		}
	}).run()
	require.Equal(t, []string{
		"o running", "o/i running", "o/i success", "o/j skipped", "o success", "broken running", "broken failure",
	}, seen)
}

func TestPanicInANestedStepFailsAllThatRun(t *testing.T) {
	tr := newTrial(t, `- {name: o, run: [{name: i, script: "true"}, {name: j, script: x}]}`, func(c *Config) {
		c.Observe = func(r StepResult) {
			if r.Name == "i" && r.Status == Running {
				panic("the observer is broken")
			}
		}
	})
	res := tr.fail("internal error of the step runner: the observer is broken")
	require.Equal(t, []string{"o failure"}, statuses(res.Steps))
	require.Equal(t, []string{"i failure", "j skipped"}, statuses(res.Steps[0].Steps))
}

func TestFileVariableIsAPathWhileTheJobRuns(t *testing.T) {
	tr := newTrial(
		t,
		`- {name: a, script: 'rev ${{ vars.CONFIG }}; basename ${{ job.CONFIG }}; stat -c %a ${{ vars.CONFIG }} $(dirname `+
			`${{ vars.CONFIG }}); echo ${{ vars.CONFIG }} > path'}`,
		func(c *Config) { c.Vars = []Variable{{Key: "CONFIG", Value: "content\n", File: true, Masked: true}} },
	)
	tr.succeed()
	require.Equal(t, "tnetnoc\nCONFIG\n600\n700\n", tr.stdout.String())
	path, err := os.ReadFile(filepath.Join(tr.place.WorkDir, "path"))
	require.NoError(t, err)
	require.NoFileExists(t, strings.TrimSpace(string(path)))
}

//stepmux:faults service | The key of a file variable writes anywhere, or over the job's log
//stepmux:with remote/job.TestFileVariableWithTheNameOfALogHarmsNoLog
func TestVariableWithAPathForAKeyIsRefused(t *testing.T) {
	for _, key := range []string{"../x", "a/b", "", "..", "-x"} {
		res := newTrial(t, `- script: x`, func(c *Config) { c.Vars = []Variable{{Key: key, Value: "x", File: true}} }).run()
		require.True(t, res.Invalid)
		require.Contains(t, res.Message, "a job variable has the name")
	}
	res := newTrial(t, `- script: x`, func(c *Config) { c.Vars = []Variable{{Key: "A"}, {Key: "A"}} }).run()
	require.Equal(t, "the job variable A is given twice", res.Message)
}

func TestDefinitionSeesOnlyTheVariablesItRequests(t *testing.T) {
	tr := newTrial(t, `
env: {SAID: here}
run:
  - {name: a, step: ./a, env: {GIVEN: here}}
`, func(c *Config) {
		c.RunnerEnv = append(c.RunnerEnv, "HOME=/home", "TZ=UTC")
		c.Env = map[string]string{"ASKED": "for", "OTHER": "secret"}
		c.Vars = []Variable{{Key: "MINE", Value: "1"}, {Key: "OTHERS", Value: "secret"}}
	}).files(map[string]string{
		"a/step.yml": `
spec: {requests: {env: [ASKED, TZ], vars: [MINE]}}
---
run:
  - {name: env, exec: {command: [env]}}
  - {name: vars, script: "echo '${{ vars }}' ${{ job.MINE }} ${{ env.ASKED }}"}
  - {name: other, step: ./b}
`,
		"a/b/step.yml": "spec: {requests: {env: [OTHER, ASKED], vars: [OTHERS]}}\n---\nexec: {command: [echo, '${{ vars " +
			"}} ${{ env.ASKED }} ${{ env.OTHER }}']}\n",
	})
	res := tr.run()
	require.Equal(
		t,
		`step "a": step "other": b/step.yml:3:61: command, argument 1: env.OTHER was not found`,
		strings.Split(res.Message, ";")[0],
	)
	require.Equal(
		t,
		"ASKED=for\nGIVEN=here\nPATH="+os.Getenv("PATH")+"\nSAID=here\nTZ=UTC\n"+`{"MINE":"1"} 1 for`+"\n",
		unmarked(tr.stdout.String()),
	)
}

//stepmux:faults engine | Values marked as masked or sensitive are shown, also in results
//stepmux:with remote/job.TestMaskedVariablesAreInNoLogAndNoMessage
//stepmux:with remote/job/service.TestFollowSendsTheOutputsOfAJobWithoutItsSecrets
//stepmux:reliability mechanisms | No secret is in a log | `remote/step/engine/mask.go`
func TestSecretsAreMaskedEverywhere(t *testing.T) {
	tr := newTrial(t, `
- {name: gen, step: ./gen}
- {name: say, script: 'echo "a ${{ steps.gen.outputs.secret }} b ${{ vars.TOKEN }}"; echo ${{
    steps.gen.outputs.secret }} >&2'}
- {name: use, step: ./use, inputs: {v: "x${{ steps.gen.outputs.secret }}"}}
- {name: leak, step: "./${{ vars.TOKEN }}"}
`, func(c *Config) {
		c.Vars = []Variable{{Key: "TOKEN", Value: "t0ken-value", Masked: true}}
	}).files(map[string]string{
		"gen/step.yml": `
spec: {outputs: {secret: {type: string, sensitive: true}}}
---
exec: {command: [sh, -c, 'echo "{\"name\":\"secret\",\"value\":\"pa55word\"}" > ${{ output_file }}']}
`,
		"use/step.yml": "spec: {inputs: {v: {type: string, sensitive: true}}}\n---\nexec: {command: [echo, 'got ${{ " +
			"inputs.v }}']}\n",
	})
	res := tr.run()
	require.Equal(t, "a [MASKED] b [MASKED]\ngot x[MASKED]\n", tr.stdout.String())
	require.Equal(t, "[MASKED]\n", tr.stderr.String())
	require.True(t, res.Steps[0].Outputs["secret"].Sensitive())
	require.NotContains(t, res.Message, "t0ken")
	require.Contains(t, res.Message, "[MASKED]")
}

func TestValueThatContainsASecretIsSensitive(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: 'echo "{\"name\":\"URL\",\"value\":\"https://${{ vars.TOKEN }}@host\"}" > ${{ export_file }}'}
- {name: b, script: 'echo ${{ env.URL }}'}
- {name: c, step: ./c, inputs: {v: "${{ env.URL }}"}}
`, func(c *Config) {
		c.Vars = []Variable{{Key: "TOKEN", Value: "t0ken-value", Masked: true}}
	}).files(map[string]string{"c/step.yml": "spec: {inputs: {v: {type: string}}}\n---\nexec: {command: [a]}\n"})
	res := tr.fail(`step "c": input "v": the value is sensitive, and the input is not; declare it with sensitive: true`)
	require.True(t, res.Exports["URL"].Sensitive())
	require.Equal(t, "https://[MASKED]@host\n", tr.stdout.String())
}

//stepmux:faults engine | A masked variable cannot be the value of an input that the function does not declare
//stepmux:more sensitive, as in GitLab's docker-auth example
//stepmux:with remote/step/trace/recording.TestInputThatAMaskedVariableMadeASecretIsInNoTrace
func TestMaskedVariableFitsEveryInputAndStaysASecret(t *testing.T) {
	tr := newTrial(t, `
- name: outer
  step: ./outer
  inputs: {v: "BEGIN ${{ vars.TOKEN }}", open: plain}
`, func(c *Config) {
		c.Vars = []Variable{{Key: "TOKEN", Value: "t0ken-value", Masked: true}}
	}).files(map[string]string{
		"outer/step.yml": `
spec: {inputs: {v: {type: string}, open: {type: string}}}
---
run: [{name: inner, step: ../inner, inputs: {all: {k: "${{ inputs.v }}"}}}]
`,
		"inner/step.yml": `
spec: {inputs: {all: {type: struct}}}
---
exec: {command: [echo, '${{ inputs.all.k }}', '${{ inputs.all }}']}
`,
	})
	res := tr.succeed()
	require.Equal(t, "BEGIN [MASKED] {\"k\":\"BEGIN [MASKED]\"}\n", tr.stdout.String())
	want := `input "%s": its value comes from a masked variable, and the input is not declared sensitive; it is masked ` +
		`all the same; declare the input with sensitive: true`
	require.Equal(t, []string{fmt.Sprintf(want, "v")}, res.Steps[0].Warnings)
	require.Equal(t, []string{fmt.Sprintf(want, "all")}, res.Steps[0].Steps[0].Warnings)
}

func TestSensitiveOutputsEnterSensitiveInputsOnly(t *testing.T) {
	newTrial(t, `
- {name: gen, step: ./gen}
- {name: u, step: ./u, inputs: {v: "BEGIN ${{ steps.gen.outputs.secret }} ${{ vars.TOKEN }}"}}
`, func(c *Config) {
		c.Vars = []Variable{{Key: "TOKEN", Value: "t0ken-value", Masked: true}}
	}).files(map[string]string{
		"gen/step.yml": `
spec: {outputs: {secret: {type: string, sensitive: true}}}
---
exec: {command: [sh, -c, 'echo "{\"name\":\"secret\",\"value\":\"pa55word\"}" > ${{ output_file }}']}
`,
		"u/step.yml": "spec: {inputs: {v: {type: string}}}\n---\nexec: {command: [echo, '${{ inputs.v }}']}\n",
	}).fail(`step "u": input "v": the value is sensitive, and the input is not; declare it with sensitive: true`)
}

func TestScriptTextIsNoSecretForHavingOneInIt(t *testing.T) {
	tr := newTrial(t, `- {name: a, script: "${{ 'echo ' + vars.TOKEN }}"}`, func(c *Config) {
		c.Vars = []Variable{{Key: "TOKEN", Value: "t0ken-value", Masked: true}}
	})
	tr.succeed()
	require.Equal(t, "[MASKED]\n", tr.stdout.String())
	require.Equal(t, "[MASKED]", tr.cfg.Secrets.Mask("t0ken-value"))
	require.Equal(t, "echo", tr.cfg.Secrets.Mask("echo"), "the script is not a secret")
}

func TestStepOfTheBlueprintFindsItsFilesInItsEnvironment(t *testing.T) {
	tr := newTrial(t, `
- {name: w, step: ./v0/w.yml, inputs: {n: 3.1}}
- {name: s, script: 'echo "${{ steps.w.outputs.a }} ${{ steps.w.outputs.b }} $E [$OUTPUT_FILE]"'}
`, func(c *Config) { c.Vars = []Variable{{Key: "CI_PROJECT_ID", Value: "42"}} }).files(map[string]string{
		"v0/w.yml": `
spec: {inputs: {n: }, outputs: {a: , b: {type: number}, never: }}
---
type: exec
exec: {command: [sh, ./run.sh]}
env: {N: "${{ inputs.n }}"}
`,
		"v0/run.sh": `
echo "a=got $N" >> "$OUTPUT_FILE"
echo 'b=7' >> "$STEP_RUNNER_OUTPUT"
echo 'E="exported"' >> "$ENV_FILE"
cat "$STEP_JSON"; echo
`,
	})
	res := tr.succeed()
	out := strings.Split(tr.stdout.String(), "\n")
	require.Equal(t, "got 3.1 7 exported []", out[1])
	require.Contains(t, out[0], `"inputs":{"n":"3.1"}`)
	require.Contains(t, out[0], `"job":{"project":{"id":"42"}}`)
	require.Equal(t, []string{`missing output "never": the step did not write it`}, res.Steps[0].Warnings)
	require.Equal(t, 7.0, res.Steps[0].Outputs["b"].Any())
}

func TestListOfTheBlueprintRunsItsStepsByItsRules(t *testing.T) {
	tr := newTrial(t, `- {name: l, step: ./l.yml}`).files(map[string]string{
		"l.yml": "spec:\n---\ntype: steps\nsteps:\n- script: '[ -w \"$OUTPUT_FILE\" ] && echo E=1 > $ENV_FILE'\n- script: " +
			"echo \"$E\"\n",
	})
	tr.succeed()
	require.Equal(t, "1\n", tr.stdout.String())
}

func TestLegacyScriptStopsAtTheFirstLineThatFails(t *testing.T) {
	tr := newTrial(t, `
- {name: a, step: builtin://legacy/script, inputs: {script: [X=kept, 'echo "$X $0"', 'false | true', echo
    not-reached]}, when: always}
- {name: b, step: builtin://legacy/script, inputs: {script: [echo one, "false", echo not-reached], shell: sh},
    when: always}
- {name: c, script: "false\necho reached $0", inputs: {shell: sh}, when: always}
`)
	tr.run()
	require.Equal(t, "kept bash\none\nreached sh\n", tr.stdout.String())
}

func TestShellThatIsWantedIsTaken(t *testing.T) {
	path := onlyIn(t, "sh")
	newTrial(
		t,
		`- {name: a, script: echo hi, inputs: {shell: bash}}`,
		func(c *Config) { c.Env = map[string]string{"PATH": path} },
	).
		fail(`step "a": no shell: bash is not in the step's PATH: exit status 127`)
}

//stepmux:faults engine | Scripts do not run if the file system for temporary files is mounted noexec
func TestScriptsRunWhereFilesCannotBeExecuted(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("part missing: bash")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skip("part missing: the right to mount")
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	tr := newTrial(t, "- {script: echo ran}")
	tr.place.ScriptDir = dir
	tr.succeed()
	require.Equal(t, "ran\n", tr.stdout.String())
}

func TestDirectoryWithAQuoteInItsNameIsNoHarm(t *testing.T) {
	tr := newTrial(t, "- {script: echo ran}")
	tr.place.ScriptDir = filepath.Join(tr.place.ScriptDir, `a'b "$(echo c)`)
	require.NoError(t, os.Mkdir(tr.place.ScriptDir, 0o700))
	tr.succeed()
	require.Equal(t, "ran\n", tr.stdout.String())
}
