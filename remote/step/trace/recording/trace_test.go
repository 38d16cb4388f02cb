package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// trace is the trace of a job that ended as res says. It is as its schema has it, and can be read.
func (tr *trial) trace(res engine.Result) (*trace.Trace, string) {
	tr.t.Helper()
	made := tr.Trace(res, time.Unix(1, 0), time.Unix(2, 0))
	data, err := made.Encode()
	require.NoError(tr.t, err)
	_, err = trace.Parse(data)
	require.NoError(tr.t, err)
	validate(tr.t, data)
	return made, string(data)
}

func validate(t testing.TB, data []byte) {
	t.Helper()
	c := jsonschema.NewCompiler()
	s, err := c.Compile("../../../../docs/steptrace-v2.json")
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	require.NoError(t, s.Validate(v))
}

func TestTraceHasTheInputsAndOutputsOfAStep(t *testing.T) {
	const definition = `
spec:
  inputs: {message: {type: string}, times: {type: number, default: 2}}
  outputs: {said: {type: string}}
---
env: {WHO: "${{ inputs.message }}"}
exec:
  work_dir: sub
  command: [bash, -c, 'echo "$0"; echo err >&2; printf "{\"name\":\"said\",\"value\":\"%s\"}\n" "$0" >>
      "${{output_file}}"', "${{inputs.message}}"]
`
	tr := newTrial(t, `
- name: one
  step: ./echo
  env: {EXTRA: "${{ work_dir }}/x"}
  inputs: {message: "hi ${{ vars.A }}"}
`, traced(), func(c *engine.Config) {
		c.Vars = []engine.Variable{{Key: "A", Value: "a"}, {Key: "UNUSED", Value: "b"}}
		c.Env = map[string]string{"GIVEN": "given"}
	}).files(map[string]string{"echo/step.yml": definition, "sub/x": ""})
	made, _ := tr.trace(tr.succeed())

	job := made.Identity.Job
	require.Equal(t, map[string]trace.Variable{"A": {Value: mask.Text{Value: "a"}}}, job.Vars)
	require.Equal(t, mask.Texts{"GIVEN": {Value: "given"}}, job.Env)
	require.Contains(t, job.OSEnv, "PATH")
	def, err := trace.DecodeDefinition(job.Definition)
	require.NoError(t, err)
	require.Equal(t, "hi ${{ vars.A }}", def.GetSteps()[0].GetInputs()["message"].GetStringValue())
	require.Equal(t, "v1", made.Identity.Runtime.Runner.Version)
	require.Len(t, made.Identity.Runtime.Runner.Digest[trace.SHA256], 64)

	s := made.Identity.Steps[0]
	require.Equal(t, "0", s.Path)
	require.Equal(t, trace.KindExec, s.Kind)
	require.Equal(t, trace.Success, s.Status)
	require.Equal(t, mask.Text{Value: "./echo"}, s.Reference.Text)
	require.False(t, s.Reference.Dynamic)
	require.Equal(t, "@work/echo", s.Component.Location)
	require.Equal(t, "step.yml", s.Component.File)
	require.Equal(t, sumOf(definition), s.Component.Digest[trace.SHA256])
	require.Equal(t, sumOf("100644 step.yml\x00"+sumOf(definition)+"\n"), s.Component.Digest[trace.SHA256Tree])
	called, err := trace.DecodeDefinition(s.Definition)
	require.NoError(t, err)
	require.Equal(t, "${{ inputs.message }}", called.GetEnv()["WHO"])
	require.Equal(t, "hi a", s.Inputs["message"].Value.Text())
	require.Equal(t, 2.0, s.Inputs["times"].Value.Any())
	require.Equal(t, mask.Texts{"EXTRA": {Value: "@work/x"}, "WHO": {Value: "hi a"}}, s.EnvSet)
	require.Equal(t, "given", s.Env["GIVEN"].Value)
	require.Contains(t, s.Env, "PATH")
	require.Equal(t, "@work/sub", s.Exec.WorkDir.Value)
	require.Contains(t, s.Exec.Argv[2].Value, `>> "@step/output"`)
	bash, err := os.ReadFile(s.Exec.Program.Path.Value)
	require.NoError(t, err)
	require.Equal(t, sumOf(string(bash)), s.Exec.Program.Digest[trace.SHA256])
	require.Nil(t, s.Exec.Interpreter)
	require.Equal(t, "hi a", s.Outputs["said"].Value.Text())
	require.Equal(t, trace.Log{Bytes: 5, SHA256: sumOf("hi a\n")}, s.Logs.Stdout)
	require.Equal(t, trace.Log{Bytes: 4, SHA256: sumOf("err\n")}, s.Logs.Stderr)
	require.Nil(t, made.Secrets, "nothing is masked")

	run := made.Volatile.Steps[0]
	require.NotZero(t, run.PID)
	require.NotZero(t, run.MaxRSS)
	require.Equal(t, &trace.Range{Bytes: 5, SHA256: sumOf("hi a\n")}, run.Stdout)
	require.Equal(t, tr.place.WorkDir, made.Volatile.Paths[trace.WorkDir])
}

func TestTraceRecordsAllEnds(t *testing.T) {
	tr := newTrial(t, `
- {name: never, if: "false", script: echo}
- {name: signal, script: "kill -9 $$"}
- name: list
  when: always
  run:
    - {name: slow, timeout: 50ms, script: "sleep 600"}
    - {name: skipped, script: echo}
- {name: missing, when: always, exec: {command: [no-such-program, x]}}
- {name: unknown, when: always, step: ./nowhere}
- {name: wrong, when: always, script: "echo ${{ steps.never.outputs.x }}"}
`, traced(), func(c *engine.Config) { c.Grace = time.Millisecond })
	made, _ := tr.trace(tr.run())
	require.Equal(t, trace.Failure, made.Identity.Status)
	require.Equal(t, "script", made.Identity.Reason)
	all := made.Identity.Steps
	require.Equal(t, trace.Skipped, all[0].Status)
	require.False(t, *all[0].Condition.Value)
	require.Nil(t, all[0].Exec)
	require.Equal(t, "SIGKILL", all[1].Exec.Signal)
	require.Equal(t, new(137), all[1].Exec.ExitCode)
	require.Equal(t, trace.KindScript, all[1].Kind)
	require.Equal(t, "kill -9 $$", all[1].Inputs["script"].Value.Text())
	require.Equal(t, all[1].Exec.Program, all[1].Exec.Interpreter)
	require.Equal(t, trace.KindSteps, all[2].Kind)
	require.Equal(t, trace.Inline, all[2].Component.Kind)
	require.Equal(t, "2.0", all[2].Steps[0].Path)
	require.True(t, all[2].Steps[0].Exec.Timeout)
	require.Equal(t, trace.Skipped, all[2].Steps[1].Status)
	require.True(t, all[3].Exec.NotStarted)
	require.Equal(t, new(127), all[3].Exec.ExitCode)
	require.Nil(t, all[3].Exec.Program)
	require.Equal(t, "no-such-program", all[3].Exec.Argv[0].Value)
	require.Nil(t, all[4].Component)
	require.Equal(t, "./nowhere", all[4].Reference.Text.Value)
	require.Equal(t, trace.Failure, all[5].Status)
	require.Contains(t, made.Volatile.Steps[len(made.Volatile.Steps)-1].Message, `step "wrong"`)
}

func TestTraceRecordsCancelledAndTimedOutJobs(t *testing.T) {
	const job = "- {name: a, script: 'echo ready; sleep 600'}\n- {name: b, script: echo}\n"
	tr := newTrial(t, job, traced())
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, 0)
	made, _ := tr.trace(<-results)
	require.Equal(t, trace.Cancelled, made.Identity.Status)
	require.Equal(t, "cancelled", made.Identity.Reason)
	require.Equal(
		t,
		[]string{trace.Cancelled, trace.Skipped},
		[]string{made.Identity.Steps[0].Status, made.Identity.Steps[1].Status},
	)
	require.Equal(t, cancelled, made.Volatile.Message)

	tr = newTrial(t, job, traced(), func(c *engine.Config) { c.Timeout, c.Grace = 50*time.Millisecond, time.Millisecond })
	made, _ = tr.trace(tr.run())
	require.Equal(t, trace.Failure, made.Identity.Status)
	require.Equal(t, "timeout", made.Identity.Reason)

	ctx, kill := context.WithCancelCause(t.Context())
	tr = newTrial(t, job, traced())
	results = tr.start(ctx)
	tr.stdout.Await(t, "ready")
	kill(errors.New("killed"))
	made, _ = tr.trace(<-results)
	require.Equal(t, trace.Cancelled, made.Identity.Status)
	require.Equal(t, "killed", made.Volatile.Message)
	require.Nil(t, made.Identity.Steps[0].Exec.ExitCode, "a killed process did not end with 0")
}

func TestTraceRecordsAnInvalidJob(t *testing.T) {
	tr := newTrial(t, "- {name: a, step: ./a}\n", traced()).files(map[string]string{"a/step.yml": "nonsense"})
	made, _ := tr.trace(tr.run())
	require.Equal(t, "invalid", made.Identity.Reason)
	require.Equal(t, trace.Skipped, made.Identity.Steps[0].Status)
}

// The trace of a job that did not run because its directory could not be made.
func TestTraceRecordsAJobThatDidNotRun(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: echo}\n", traced())
	res := engine.Result{
		Status: engine.Failure, System: true, Message: "no disk", Steps: engine.NotRun(tr.job.Definition),
	}
	made, _ := tr.trace(res)
	require.Equal(t, "system", made.Identity.Reason)
	require.Len(t, made.Identity.Steps, 1)
}

// Each secret is replaced by its sum everywhere, also in texts from before it was known as a secret.
func TestNoSecretIsInATrace(t *testing.T) {
	secrets := []string{
		"tokentoken",
		"late-secret",
		"declared-secret",
		"pw-in-url",
		"key-secret",
		"file-secret",
		"short-form",
		"only-token",
	}
	tr := newTrial(t, `
- name: early
  step: ./echo
  inputs: {message: "late-secret"}
- name: gen
  step: ./gen
- name: use
  step: ./sensitive
  env: {E: "x ${{ vars.TOKEN }} y"}
  inputs: {v: "declared-secret"}
- name: argv
  exec: {command: [echo, "${{ vars.TOKEN }}", "https://me:pw-in-url@host/x", "${{ vars.FILE }}",
      "HTTPS://only-token@host"]}
- name: script
  script: "echo ${{ vars.TOKEN }}; echo '{\"name\":\"N\",\"value\":\"'tokentoken'\"}' > ${{ export_file }}"
- name: literal
  script: "echo tokentoken | cat"
- name: keys
  env: {"K_${{ 'key' + '-secret' == 'key-secret' && 'X' }}": "key-secret"}
  if: "'tokentoken' == vars.TOKEN"
  script: echo
- name: fails
  when: always
  script: "echo tokentoken >&2; exit 3"
- name: skipped
  when: on_success
  step: "me:short-form@host.invalid/a/b@v1"
- name: long
  when: on_success
  step: {git: {url: "https://only-token@host.invalid/a/b", rev: v1}}
`, traced(), func(c *engine.Config) {
		c.Vars = []engine.Variable{
			{Key: "TOKEN", Value: "tokentoken", Masked: true},
			{Key: "FILE", Value: "file-secret", Masked: true, File: true},
			{Key: "KEY", Value: "key-secret", Masked: true},
			{Key: "PLAIN", Value: "plain"},
		}
		c.Env = map[string]string{"GIVEN": "with tokentoken in it"}
		c.RunnerEnv = append(c.RunnerEnv, "http_proxy=http://me:pw-in-url@proxy")
	}).files(map[string]string{
		"echo/step.yml": "spec: {inputs: {message: {type: string}}}\n---\nexec: {command: [echo, '${{ inputs.message " +
			"}}']}\n",
		"gen/step.yml": "spec: {outputs: {o: {type: struct, sensitive: true}}}\n---\nexec: {command: [sh, -c, 'echo " +
			"''{\"name\":\"o\",\"value\":{\"a\":[\"late-secret\"]}}'' > ${{ output_file }}']}\n",
		"sensitive/step.yml": "spec: {inputs: {v: {type: string, sensitive: true}}}\n---\nexec: {command: [echo, '${{ " +
			"inputs.v }}']}\n",
	})
	res := tr.run()
	require.Equal(t, `step "fails": exec: exit status 3`, res.Message)
	made, text := tr.trace(res)
	for _, secret := range secrets {
		require.NotContains(t, text, secret)
	}
	id := made.Identity
	require.True(t, id.Job.Vars["TOKEN"].Value.Masked)
	require.Equal(t, made.Secrets.Sum("tokentoken"), id.Job.Vars["TOKEN"].Value.HMAC)
	require.Equal(t, id.Job.Vars["TOKEN"].Value, id.Steps[3].Exec.Argv[1], "the same secret has the same sum")
	require.True(t, id.Job.Vars["FILE"].File)
	require.NotContains(t, id.Job.Vars, "PLAIN")
	require.True(t, id.Job.Env["GIVEN"].Masked)
	require.True(t, id.Job.OSEnv["http_proxy"].Masked)
	require.True(t, id.Steps[0].Inputs["message"].Masked, "a later step told that it is one")
	require.True(t, id.Steps[0].Exec.Argv[1].Masked)
	require.Equal(t, "object", id.Steps[1].Outputs["o"].Type)
	require.Equal(t, made.Secrets.Sum("declared-secret"), id.Steps[2].Inputs["v"].HMAC)
	require.Equal(t, made.Secrets.Sum("x tokentoken y"), id.Steps[2].EnvSet["E"].HMAC)
	require.Equal(t, "@tmp/vars/FILE", id.Steps[3].Exec.Argv[3].Value)
	require.True(t, id.Steps[4].Inputs["script"].Masked)
	require.True(t, id.Steps[4].Exports["N"].Masked)
	require.True(t, id.Steps[6].Condition.Expr.Masked)
	_, err := trace.DecodeDefinition(id.Job.Definition)
	require.ErrorIs(t, err, trace.ErrMasked)
}

func TestSourceDigestOfATextWithASecretIsLeftOut(t *testing.T) {
	for value, want := range map[string]trace.Digest{"in the text": nil, "elsewhere": {trace.SHA256: sumOf("x")}} {
		record := traced()
		record.Source.Digest, record.Text = trace.Digest{trace.SHA256: sumOf("x")}, []byte("a secret in the text")
		tr := newTrial(t, "- {name: a, script: echo}\n", record, func(c *engine.Config) {
			c.Vars = []engine.Variable{{Key: "S", Value: value, Masked: true}}
		})
		made, _ := tr.trace(tr.succeed())
		require.Equal(t, want, made.Identity.Job.Source.Digest)
	}
}

const deterministic = `
- name: sub
  step: ./lib/outer
  inputs: {n: 3}
- name: script
  script: |
    echo "in $PWD at ${{ work_dir }} with ${{ vars.TOKEN }}"
    no-such-command
    ls -d ${{ step_dir }} >&2
- name: files
  script: "echo '{\"name\":\"F\",\"value\":\"${{ export_file }}\"}' > ${{ export_file }}; echo $0 ${{ output_file }}"
- name: after
  script: "echo $F"
`

func TestTwoRunsHaveTheSameIdentity(t *testing.T) {
	salt := mask.NewSalt()
	var first string
	for range 5 {
		record := traced()
		record.Salt = salt
		tr := newTrial(t, deterministic, record, func(c *engine.Config) {
			c.Vars = []engine.Variable{{Key: "TOKEN", Value: "tokentoken", Masked: true}}
		}).files(map[string]string{
			"lib/outer/step.yml": "spec: {inputs: {n: {type: number}}}\n---\nrun: [{name: i, step: ../inner, inputs: {n: " +
				"'${{ inputs.n }}'}}]\n",
			"lib/inner/step.yml": "spec: {inputs: {n: {type: number}}}\n---\nexec: {command: [./run.sh, '${{ inputs.n }}'], " +
				"work_dir: '${{ step_dir }}'}\n",
			"lib/inner/run.sh": "#!/usr/bin/env sh\npwd; echo $1; echo $0 >&2\n",
		})
		made, _ := tr.trace(tr.succeed())
		identity, err := made.Identity.Canonical()
		require.NoError(t, err)
		if first == "" {
			first = string(identity)
		}
		require.Equal(t, first, string(identity), "in another directory, too")
		inner := made.Identity.Steps[0].Steps[0]
		require.Equal(t, "@work/lib/inner/./run.sh", inner.Exec.Program.Path.Value)
		require.Regexp(t, regexp.MustCompile(`/sh$`), inner.Exec.Interpreter.Path.Value)
		require.Equal(t, trace.Log{Bytes: 19, SHA256: sumOf("@work/lib/inner\n3\n")}.SHA256, inner.Logs.Stdout.SHA256)
	}
}

func TestDirectoryOfALocalStepIsSummedUpIfItIsSmall(t *testing.T) {
	tr := newTrial(
		t,
		"- {name: root, step: .}\n- {name: large, step: ./large}\n- {name: small, step: ./small}\n- {name: changed, "+
			"script: 'echo >> small/x'}\n- {name: again, step: ./small}\n- {name: linked, step: ./link}\n",
		traced(),
	)
	require.NoError(t, os.Symlink("small", filepath.Join(tr.place.WorkDir, "link")))
	files := map[string]string{"small/.git/x": "", "small/x": ""}
	for _, dir := range []string{"", "large/", "small/"} {
		files[dir+"step.yml"] = says("x")
	}
	for i := range maxTreeEntries {
		files[fmt.Sprintf("large/%d", i)] = ""
	}
	made, _ := tr.files(files).trace(tr.succeed())
	trees := map[string]string{}
	for _, s := range made.Identity.Steps {
		if s.Component.Kind == trace.Local {
			require.Equal(t, sumOf(says("x")), s.Component.Digest[trace.SHA256], "that of the definition is always there")
			trees[s.Name] = s.Component.Digest[trace.SHA256Tree]
		}
	}
	require.Empty(t, trees["root"], "the whole project is not looked at")
	require.Empty(t, trees["large"])
	require.NotEmpty(t, trees["small"])
	require.NotEqual(t, trees["small"], trees["again"])
	require.Equal(t, trees["again"], trees["linked"])
}

func TestTraceHasTheSourceOfAFetchedStep(t *testing.T) {
	s, repository := serve(t, "c/echo", map[string]string{
		"steps/step.yml":       "spec: {}\n---\nrun: [{name: i, step: ./inner}]\n",
		"steps/inner/step.yml": "spec: {}\n---\nexec: {command: [echo, '${{ step_dir }}']}\n",
	})
	tr := newTrial(
		t,
		"- {name: a, step: '"+s.URL+"/c/echo@v1'}\n- {name: b, step: '"+s.URL+"/c/echo@${{ \"v1\" }}'}\n",
		traced(),
		withStore(t),
	)
	made, _ := tr.trace(tr.succeed())
	a, b := made.Identity.Steps[0], made.Identity.Steps[1]
	require.Equal(t, trace.Git, a.Component.Kind)
	require.Equal(t, s.URL+"/c/echo", a.Component.Location)
	require.Equal(t, "v1", a.Component.Version)
	require.Equal(t, "refs/tags/v1", a.Component.ResolvedRef)
	require.Equal(t, repository.Git("rev-parse", "main"), a.Component.Digest[trace.GitCommit])
	require.Len(t, a.Component.Digest[trace.GitTree], 40)
	tree := a.Component.Digest[trace.SHA256Tree]
	require.Len(t, tree, 64)
	require.Equal(t, []string{"steps", "step.yml"}, []string{a.Component.Dir, a.Component.File})
	require.Equal(t, "@cache/"+tree+"/steps/inner", a.Steps[0].Component.Location)
	require.Equal(t, "@cache/"+tree+"/steps/inner", a.Steps[0].Exec.Argv[1].Value)
	require.Equal(t, sumOf("@cache/"+tree+"/steps/inner\n"), a.Steps[0].Logs.Stdout.SHA256)
	require.False(t, a.Reference.Dynamic)
	require.True(t, b.Reference.Dynamic)
	require.Equal(t, a.Component, b.Component)
	require.Equal(t, []string{"fetched", "hit"}, []string{made.Volatile.Steps[0].Cache, made.Volatile.Steps[2].Cache})
}

func TestTraceThatBecomesTooLargeIsCutStepByStep(t *testing.T) {
	var asked []int64
	record := traced()
	record.Room = func(size int64) error {
		asked = append(asked, size)
		if len(asked) > 2 {
			return errors.New("no space left on device")
		}
		return nil
	}
	var job strings.Builder
	for _, name := range "abcde" {
		fmt.Fprintf(&job, "- {name: %c, script: echo %c}\n", name, name)
	}
	tr := newTrial(t, job.String(), record, func(c *engine.Config) {
		c.Env = map[string]string{"LARGE": strings.Repeat("x", 100<<10)}
	})
	made, text := tr.trace(tr.succeed())
	require.False(t, made.Identity.Steps[0].Truncated)
	last := made.Identity.Steps[4]
	require.True(t, last.Truncated)
	require.Empty(t, last.Env)
	require.Equal(t, trace.Success, last.Status)
	require.NotZero(t, last.Logs)
	require.Equal(
		t,
		[]string{"steps marked as truncated lack large data: no space left on device"},
		made.Volatile.Warnings,
	)
	require.Len(t, asked, 3)
	require.Less(t, int64(len(text)), asked[1], "what there was room for")
}

// Symptom: the outputs of the job were not counted, so no trace could be written: it would have had too many values.
func TestOutputsOfTheJobHaveTheirPlaceBeforeThoseOfSteps(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: echo}\n- {name: b, script: echo}\n- {name: c, script: echo}\n", traced())
	res := tr.succeed()
	lists := map[string]expr.Value{}
	for i := range 8 {
		v, err := expr.New(slices.Repeat([]any{[]any{}}, 800))
		require.NoError(t, err)
		lists[fmt.Sprint(i)] = v
	}
	tr.limit = 1 << 20
	for i := range 2 {
		res.Steps[i].Outputs = lists
		tr.StepEnded(&res.Steps[i])
	}
	res.Outputs = lists
	made, _ := tr.trace(res)
	require.False(t, made.Identity.Steps[0].Truncated)
	require.True(t, made.Identity.Steps[1].Truncated)
	require.Len(t, made.Identity.Outputs, len(lists))
	require.Len(t, made.Identity.Steps[0].Outputs, len(lists))
	require.Empty(t, made.Identity.Steps[1].Outputs)
	require.Equal(t, []string{"steps marked as truncated lack large data: the trace has more than 67108864 bytes of it"},
		made.Volatile.Warnings)
}

// Symptom: a definition was counted by its bytes only, but empty lists make half a million values in a megabyte.
func TestDefinitionsOfManyValuesAreCutStepByStep(t *testing.T) {
	var job strings.Builder
	for i := range 4 {
		fmt.Fprintf(&job, "- {name: s%d, step: ./lists}\n", i)
	}
	lists := "[" + strings.Repeat("[],", 3000) + "[]]"
	tr := newTrial(t, job.String(), traced()).files(map[string]string{
		"lists/step.yml": "spec: {inputs: {l: {type: array, default: " + lists + "}}}\n---\nexec: {command: ['true']}\n",
	})
	tr.limit = 1 << 20
	made, _ := tr.trace(tr.succeed())
	require.False(t, made.Identity.Steps[0].Truncated)
	require.True(t, made.Identity.Steps[3].Truncated)
	require.Equal(t, []string{"steps marked as truncated lack large data: the trace has more than 67108864 bytes of it"},
		made.Volatile.Warnings)
}

func TestFilesAreSummedUpAgainOnlyWhenTheyChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	s := sums{open: os.OpenFile}
	sum := func(text string) string {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		info, err := os.Lstat(path)
		require.NoError(t, err)
		digest, err := s.file(path, info)
		require.NoError(t, err)
		return digest
	}
	require.Equal(t, sumOf("a"), sum("a"))
	require.Equal(t, sumOf("bb"), sum("bb"))
	require.Equal(t, sumOf("bb"), s.files[path].digest)
}

func TestVersionOfBashIsFoundInItsFile(t *testing.T) {
	text := strings.Repeat("x", 1000) + "@(#)Bash version 5.2.15(1) release GNU\x00" + strings.Repeat("y", 1000)
	for size := 1; size < len(text); size += 7 {
		v := &versionFinder{}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, _ = v.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		require.Equal(t, "Bash version 5.2.15(1) release GNU", v.version, "in pieces of %d", size)
	}
}

func BenchmarkTracedJob(b *testing.B) {
	var job strings.Builder
	for i := range 20 {
		fmt.Fprintf(&job, "- {name: s%d, exec: {command: ['true']}}\n", i)
	}
	for name, change := range map[string]func(*engine.Config){
		"untraced": func(c *engine.Config) { c.Events = nil }, "traced": func(*engine.Config) {},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				tr := newTrial(b, job.String(), traced())
				change(&tr.job)
				tr.Runner = engine.New(tr.job)
				res := tr.succeed()
				if tr.job.Events != nil {
					_, err := tr.Trace(res, time.Time{}, time.Time{}).Encode()
					require.NoError(b, err)
				}
			}
		})
	}
}

// Symptom: a step that never ran, or failed without an exit code, had the exit code of a success.
func TestOnlyAStepWithAnEndedScriptHasAnExitCode(t *testing.T) {
	tr := newTrial(t, `
- {name: done, script: "true"}
- {name: never, if: "false", script: echo}
- {name: list, run: [{name: three, script: exit 3}]}
- {name: missing, when: always, exec: {command: [no-such-program]}}
- {name: unknown, when: always, step: ./nowhere}
`, traced())
	made, _ := tr.trace(tr.run())
	data, err := made.Encode()
	require.NoError(t, err)
	type result struct {
		Name     string
		ExitCode any `json:"exit_code"`
		Exec     *struct {
			ExitCode any `json:"exit_code"`
		}
		Steps []result
	}
	var got struct{ Identity result }
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, 3.0, got.Identity.ExitCode)
	codes := map[string]any{}
	for _, s := range got.Identity.Steps {
		codes[s.Name] = s.ExitCode
	}
	require.Equal(t, map[string]any{"done": 0.0, "never": nil, "list": 3.0, "missing": 127.0, "unknown": nil}, codes)
	require.Equal(t, 0.0, got.Identity.Steps[0].Exec.ExitCode)
}

// Symptom: an isolated job got the digest of a file that it could not open, and the first line of a script.
func TestProgramThatTheJobCannotOpenHasNoDigest(t *testing.T) {
	hidden := filepath.Join(t.TempDir(), "hidden")
	require.NoError(t, os.WriteFile(hidden, []byte("#!/bin/sh\n"), 0o600))
	tr := newTrial(t, "- name: a\n  step: ./a\n", traced(), func(c *engine.Config) {
		c.Open = func(path string, flag int, perm fs.FileMode) (*os.File, error) {
			real, err := filepath.EvalSymlinks(path)
			if err != nil || real == hidden {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			return os.OpenFile(path, flag, perm)
		}
	}).files(map[string]string{"a/step.yml": "spec: {}\n---\nexec: {command: [./link]}\n"})
	require.NoError(t, os.Symlink(hidden, filepath.Join(tr.place.WorkDir, "link")))
	s := tr.Trace(tr.run(), time.Now(), time.Now()).Identity.Steps[0]
	require.Equal(t, "@work/./link", s.Exec.Program.Path.Value)
	require.Empty(t, s.Exec.Program.Digest)
	require.Nil(t, s.Exec.Interpreter)
}
