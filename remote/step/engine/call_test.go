package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
)

const echoStep = `
spec:
  inputs:
    message: {type: string}
    count: {type: number, default: 1}
  outputs:
    said: {type: string}
---
exec:
  command: [sh, -c, 'printf "{\"name\":\"said\",\"value\":\"%s %s\"}\n" "$1" "$2" >> "$3"', sh, "${{ inputs.message
      }}", "${{ inputs.count }}", "${{ output_file }}"]
`

func TestStepsCallOthersAndReadTheirOutputs(t *testing.T) {
	res := newTrial(t, `
- {name: a, step: ./echo, inputs: {message: hello}}
- {name: b, func: ./echo/func.yml, inputs: {message: "${{ steps.a.outputs.said }}!", count: "${{ 1 + 1 }}"}}
`).files(map[string]string{"echo/func.yml": echoStep}).succeed()
	require.Equal(t, "hello 1", res.Steps[0].Outputs["said"].Text())
	require.Equal(t, "hello 1! 2", res.Steps[1].Outputs["said"].Text())
	require.Equal(t, Command, res.Steps[1].Kind)
}

func TestReferencesAreRelativeToTheDefinitionTheyStandIn(t *testing.T) {
	tr := newTrial(t, `- {name: a, step: ./outer}`).files(map[string]string{
		"outer/step.yml":       "{}\n---\nrun: [{name: i, step: ./inner}, {name: p, step: ../other/x.yml}]\n",
		"outer/inner/step.yml": "{}\n---\nexec: {command: ['${{ step_dir }}/say.sh']}\n",
		"outer/inner/say.sh":   "#!/bin/sh\necho said in $PWD\n",
		"inner/step.yml":       "{}\n---\nexec: {command: [echo, wrong]}\n",
		"other/x.yml":          "{}\n---\nexec: {command: [echo, '${{ func_dir == step_dir }}']}\n",
	})
	tr.succeed()
	require.Equal(t, "said in "+tr.place.WorkDir+"\ntrue\n", tr.stdout.String())
}

func TestFuncFileIsPreferred(t *testing.T) {
	tr := newTrial(t, "- step: ./both\n- step: ./old\n").files(map[string]string{
		"both/func.yml": "{}\n---\nexec: {command: [echo, func]}\n",
		"both/step.yml": "{}\n---\nexec: {command: [echo, step]}\n",
		"old/step.yml":  "{}\n---\nexec: {command: [echo, old]}\n",
	})
	tr.succeed()
	require.Equal(t, "func\nold\n", tr.stdout.String())
}

//stepmux:faults engine | The types of inputs are not checked when a step is called
//stepmux:with remote/step/lang.TestInputsTakeValuesOfTheirTypeOnly
func TestInputsAreCheckedAtTheCall(t *testing.T) {
	files := map[string]string{"echo/step.yml": echoStep}
	for step, want := range map[string]string{
		// These are known before the first step runs.
		`{step: ./echo}`: `step "b": the input "message" is required, ` +
			`and not given`,
		`{step: ./echo, inputs: {message: 1}}`: `step "b": input "message": the value is a ` +
			`number, and must be a string`,
		`{step: ./echo, inputs: {message: x, cuont: 1}}`: `step "b": the step takes no input "cuont", ` +
			`did you mean "count"?`,
		`{step: builtin://script, inputs: {scritp: x}}`: `step "b": the step takes no input "scritp", ` +
			`did you mean "script"?`,
		`{step: builtin://nothing}`: `step "b": there is no step "nothing" built in; there are artifacts/download, ` +
			`artifacts/upload, cache/restore, cache/save, git/clone, github/job, legacy/script, script, script_legacy`,
		`{step: builtin://function/oci/build}`: `step "b": builtin://function/oci/build is not part of this version: ` +
			`build the image with another tool, such as docker build or buildah; it needs the step's files and nothing else`,
		`{step: builtin://git/clone, inputs: {revision: 1}}`: `step "b": input "revision": the value is a number, and ` +
			`must be a string`,
		`{step: "./${{ vars.D }}"}`: `step "b": the input "message" is required, ` +
			`and not given`,
		`{step: "./${{ vars.D }}", inputs: {x: 1}}`: `step "b": the step takes no input "x"; it ` +
			`takes count, message`,
		`{step: ./echo, inputs: {message: "${{ vars.N }}"}}`: `step "b": job.yml:2:54: input "message": ` +
			`vars.N was not found`,
		`{step: ./echo, inputs: {message: "${{ 1 }}"}}`: `step "b": input "message": the value is a ` +
			`number, and must be a string`,
		`{step: ./echo, inputs: {message: x, "${{ 'mess' + 'age' }}": y}}`: `step "b": input "message": two keys of ` +
			`inputs give this name`,
	} {
		t.Run(step, func(t *testing.T) {
			tr := newTrial(t, "- {name: a, script: echo ran}\n- "+strings.Replace(step, "{", "{name: b, ", 1),
				func(c *Config) { c.Vars = []Variable{{Key: "D", Value: "echo"}} }).files(files)
			tr.fail(want)
		})
	}
}

func TestInputsHaveALimit(t *testing.T) {
	newTrial(t, `
- {name: w, step: ./w}
- {name: use, step: ./echo, inputs: {message: "${{ steps.w.outputs.v }}"}}
`).files(map[string]string{
		"echo/step.yml": echoStep,
		"w/step.yml": "spec: {outputs: {v: {type: string}}}\n---\nexec: {command: [sh, -c, '(printf " +
			"\"{\\\"name\\\":\\\"v\\\",\\\"value\\\":\\\"\"; head -c 5000000 /dev/zero | tr \"\\\\0\" x; echo \"\\\"}\") > " +
			"${{ output_file }}']}\n",
	}).fail(`step "use": input "message": the value has 5000000 bytes, the limit is 4194304; pass large data in a file`)
}

func TestVisibleMistakesFailTheJobBeforeTheFirstStep(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"misspelt key": {"b/step.yml", "{}\n---\nexec: {comand: [a]}\n", `step "b": b/step.yml:3:8: unknown key ` +
			`"comand", did you mean "command"?`},
		"second level": {"b/step.yml", "{}\n---\nrun: [{name: c, step: ../c}]\n", `step "b": step "c": ` +
			`../c/step.yml:1:1: a step has two documents, its spec and its command or steps; write --- on a line between them`},
		"not a text": {"b/step.yml/x", "", `step "b": read step b: step.yml is not a regular file`},
		"an inline list": {"d/step.yml", "{}\n---\nrun: [{name: x, run: [{name: y, step: ../c}]}]\n", `step "b": find ` +
			`step b: it has neither func.yml nor step.yml: file does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, "- {name: a, script: echo ran}\n- {name: b, step: ./b}\n").files(map[string]string{
				tc.file: tc.text, "c/step.yml": "exec: {command: [a]}\n",
			})
			res := tr.fail(tc.want)
			if name == "an inline list" {
				require.False(t, res.Invalid, "what is not there may come to be there")
				return
			}
			require.True(t, res.Invalid)
			require.Equal(t, []string{"a skipped", "b skipped"}, statuses(res.Steps))
			require.Empty(t, tr.stdout.String())
		})
	}
}

func TestStepMayBeMadeByTheOneBefore(t *testing.T) {
	tr := newTrial(t, `
- {name: make, script: "mkdir made; printf '{}\n---\nexec: {command: [echo, made]}\n' > made/step.yml"}
- {name: use, step: ./made}
- {name: change, script: "sed -i s/made/changed/ made/step.yml"}
- {name: again, step: ./made}
`)
	tr.succeed()
	require.Equal(t, "made\nchanged\n", tr.stdout.String())
}

func TestDynamicReferenceIsResolvedWhenItsStepRuns(t *testing.T) {
	tr := newTrial(t, `
- {name: choose, script: "echo '{\"name\":\"WHICH\",\"value\":\"./b\"}' > ${{ export_file }}"}
- {name: call, step: "${{ env.WHICH }}"}
`).files(map[string]string{"b/step.yml": "{}\n---\nexec: {command: [echo, chosen]}\n"})
	tr.succeed()
	require.Equal(t, "chosen\n", tr.stdout.String())

	newTrial(
		t,
		`- {name: call, step: "${{ env.HOME }}/${{ 'x' }}:"}`,
		func(c *Config) { c.Env = map[string]string{"HOME": "nothing.example"} },
	).
		fail(`step "call": the reference is invalid; an image is written as registry/repository:tag`)
}

//stepmux:faults engine | An outer step hides an inner one of its name; one step too many runs, or one too few
//stepmux:with remote/step/engine.TestJobMayRunTenThousandStepsAndNoMore
func TestInnerStepHidesAnOuterOneOfItsName(t *testing.T) {
	export := func(text string) string {
		return `script: "echo '{\"name\":\"WHICH\",\"value\":\"` + text + `\"}' > ${{ export_file }}"`
	}
	tr := newTrial(t, `
- {name: same, `+export("outer")+`}
- name: list
  run:
  - {name: same, `+export("inner")+`}
  - {name: one, script: "echo ${{ steps.same.exports.WHICH }}"}
  - {name: all, script: "echo '${{ str(steps) }}'"}
- {name: after, script: "echo ${{ steps.same.exports.WHICH }}"}
`)
	tr.succeed()
	lines := strings.Split(tr.stdout.String(), "\n")
	require.Equal(t, "inner", lines[0])
	require.Contains(t, lines[1], `"WHICH":"inner"`)
	require.NotContains(t, lines[1], "outer")
	require.Equal(t, "outer", lines[2])
}

//stepmux:faults engine | A step that calls itself runs for ever, even after the job is closed
//stepmux:with remote/step/engine.TestStopEndsStepsThatCallEachOtherInACircle
//stepmux:with remote/step/engine.TestJobRunsABoundedNumberOfSteps
func TestStepThatCallsItselfFails(t *testing.T) {
	res := newTrial(t, `- {name: a, step: ./loop}`).
		files(map[string]string{"loop/step.yml": "{}\n---\nrun: [{name: again, step: ../loop}]\n"}).run()
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, "the steps call each other beyond a depth of 32; does one of them call itself?")
}

// In other step runners, steps that called each other ran forever, even after the job was closed.
func TestStopEndsStepsThatCallEachOtherInACircle(t *testing.T) {
	// If Stop comes just before an always step, that step and those below it have their own time.
	soon := func(c *Config) { c.AlwaysLimit = 100 * time.Millisecond }
	tr := newTrial(t, `- {name: a, step: ./ping}`, soon).files(map[string]string{
		"ping/step.yml": "{}\n---\nrun: [{name: say, script: echo ping}, {name: to, step: ../pong}, {name: again, step: " +
			"../pong}]\n",
		"pong/step.yml": "{}\n---\nrun: [{name: to, step: ../ping, when: always}, {name: again, step: ../ping, when: " +
			"on_failure}]\n",
	})
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ping\nping\n")
	tr.Stop(cancelled, patience)
	res := <-results
	require.Equal(t, Cancelled, res.Status, res.Message)
	require.Less(t, tr.count, maxRun, "it was not the number of steps that ended it")
}

func TestJobRunsABoundedNumberOfSteps(t *testing.T) {
	many := "{}\n---\nrun:\n" + strings.Repeat("- {name: N, step: ../few}\n", 110)
	for i := 0; strings.Contains(many, "N,"); i++ {
		many = strings.Replace(many, "N,", "s"+strings.Repeat("x", i)+",", 1)
	}
	res := newTrial(t, `- {name: a, step: ./most}`, func(c *Config) { c.Observe = nil }).files(map[string]string{
		"most/step.yml": strings.ReplaceAll(many, "../few", "../many"),
		"many/step.yml": many,
		"few/step.yml":  "{}\n---\nrun: [{name: never, if: false, script: x}]\n",
	}).run()
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, "the job runs more than 10000 steps")
}

// 101 steps that call 98 each, and the first one: 10,000.
func TestJobMayRunTenThousandStepsAndNoMore(t *testing.T) {
	calls := func(n int, step string) string {
		var text strings.Builder
		text.WriteString("{}\n---\nrun:\n")
		for i := range n {
			fmt.Fprintf(&text, "- {name: s%d, step: %s}\n", i, step)
		}
		return text.String()
	}
	files := map[string]string{
		"most/step.yml": calls(101, "../many"),
		"many/step.yml": calls(98, "../few"),
		"few/step.yml":  "{}\n---\nrun: [{name: never, if: false, script: x}]\n",
	}
	quiet := func(c *Config) { c.Observe = nil }
	newTrial(t, `- {name: all, step: ./most}`, quiet).files(files).succeed()
	newTrial(t, `[{name: all, step: ./most}, {name: more, step: ./few}]`, quiet).files(files).
		fail(`step "more": the job runs more than 10000 steps`)
}

// fakeFetcher has fetched everything already.
type fakeFetcher struct {
	at  component.Component
	err error
}

func (f fakeFetcher) Fetch(context.Context, *pb.Reference, component.Credentials) (*component.Component, error) {
	return &f.at, f.err
}

func TestRemoteStepsNeedAFetcher(t *testing.T) {
	for ref, want := range map[string]string{
		"https://user:geheim@example.com/tools/lint@v1": `step "a": fetch https://example.com/tools/lint@v1: this program ` +
			`fetches no steps from git; use a step of the project, such as ./build`,
		"zip+https://example.com/x.zip": `step "a": fetch https://example.com/x.zip: this program fetches ` +
			`no steps from zip; use a step of the project, such as ./build`,
		"registry.example.com/lint:1": `step "a": fetch registry.example.com/lint:1: this program ` +
			`fetches no steps from oci; use a step of the project, such as ./build`,
	} {
		newTrial(t, "- {name: a, step: '"+ref+"'}").fail(want)
	}
	newTrial(t, "- {name: a, action: owner/repository@v1}").
		fail(`step "a": GitHub Actions are not supported by this program; use a step or a script`)
	newTrial(
		t,
		"- {name: a, step: example.com/a@v1}",
		func(c *Config) { c.Fetcher = fakeFetcher{err: errors.New("no route")} },
	).
		fail(`step "a": fetch https://example.com/a@v1: no route`)
}

func TestFetchedStepCannotReferToFilesOutside(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"in/step.yml":      "{}\n---\nrun: [{name: i, step: ../other}]\n",
		"other/step.yml":   "{}\n---\nexec: {command: [echo, inside]}\n",
		"out/step.yml":     "{}\n---\nrun: [{name: i, step: ../../x}]\n",
		"abs/step.yml":     "{}\n---\nrun: [{name: i, step: /etc}]\n",
		"link/step.yml":    "{}\n---\nrun: [{name: i, step: ./leads}]\n",
		"dynamic/step.yml": "{}\n---\nrun: [{name: i, step: \"${{ '..' + '/../x' }}\"}]\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(root, "link", "leads")))
	run := func(dir string) (*trial, Result) {
		tr := newTrial(t, "- {name: a, step: example.com/a@v1}", func(c *Config) {
			c.Fetcher = fakeFetcher{at: component.Component{Root: root, Dir: filepath.Join(root, dir)}}
		})
		return tr, tr.run()
	}
	tr, res := run("in")
	require.Equal(t, Success, res.Status, res.Message)
	require.Equal(t, "inside\n", tr.stdout.String())
	for _, dir := range []string{"out", "abs", "link", "dynamic"} {
		_, res := run(dir)
		require.Contains(t, res.Message,
			"the step's path is outside of the fetched component, and a fetched step cannot refer to that", dir)
	}
}

func TestOutputsOfASequenceAreThoseItNames(t *testing.T) {
	files := map[string]string{
		"echo/step.yml": echoStep,
		"both/step.yml": `
spec: {outputs: {said: {type: string}, n: {type: number, default: 7}}}
---
run: [{name: e, step: ../echo, inputs: {message: x}}]
outputs: {said: "<${{ steps.e.outputs.said }}>"}
`,
		"delegate/step.yml": `
spec: {outputs: delegate}
---
run: [{name: e, step: ../echo, inputs: {message: y}}]
delegate: e
`,
		"twice/step.yml":   "spec: {outputs: delegate}\n---\nrun: [{name: d, step: ../delegate}]\ndelegate: d\n",
		"missing/step.yml": "spec: {outputs: {a: {type: string}}}\n---\nrun: [{name: e, script: 'true'}]\n",
		"wrong/step.yml":   "spec: {outputs: {a: {type: string}}}\n---\nrun: [{name: e, script: 'true'}]\noutputs: {a: 1}\n",
		"skipped/step.yml": "spec: {outputs: delegate}\n---\nrun: [{name: e, script: 'true', if: false}]\ndelegate: e\n",
	}
	res := newTrial(
		t,
		"- {name: a, step: ./both}\n- {name: b, step: ./delegate}\n- {name: c, step: ./twice}\n",
	).files(files).
		succeed()
	require.Equal(t, "<x 1>", res.Steps[0].Outputs["said"].Text())
	require.Equal(t, "7", res.Steps[0].Outputs["n"].Text())
	require.Equal(t, "y 1", res.Steps[1].Outputs["said"].Text())
	require.Equal(t, "y 1", res.Steps[2].Outputs["said"].Text())
	require.Equal(t, "e", res.Steps[0].Steps[0].Name)
	require.Equal(t, []string{"c", "d", "e"}, res.Steps[2].Steps[0].Steps[0].Path)
	for dir, want := range map[string]string{
		"missing": `step "a": missing output "a": the step did not give it, and it has no default`,
		"wrong":   `step "a": output "a": the value is a number, and must be a string`,
		"skipped": `step "a": outputs: the step "e", which should provide them, did not run`,
	} {
		newTrial(t, "- {name: a, step: ./"+dir+"}").files(files).fail(want)
	}
}

func TestJobHasInputsAndOutputs(t *testing.T) {
	res := newTrial(t, `
spec:
  inputs: {who: {type: string, default: world}}
  outputs: {greeting: {type: string}, n: {type: number}}
---
run: [{name: a, step: ./echo, inputs: {message: "hello ${{ inputs.who }}"}}]
outputs: {greeting: "${{ steps.a.outputs.said }}", n: "${{ 1 + 2 }}"}
`).files(map[string]string{"echo/step.yml": echoStep}).succeed()
	require.Equal(t, "hello world 1", res.Outputs["greeting"].Text())
	require.Equal(t, "3", res.Outputs["n"].Text())

	res = newTrial(t, `
spec: {outputs: {v: {type: string}}}
---
exec: {command: [sh, -c, 'echo "{\"name\":\"v\",\"value\":\"alone\"}" > ${{ output_file }}']}
`).succeed()
	require.Equal(t, "alone", res.Outputs["v"].Text())
}

func TestNestedListsSeeTheStepsAroundThem(t *testing.T) {
	tr := newTrial(t, `
- {name: a, step: ./echo, inputs: {message: outer}}
- name: group
  env: {LEVEL: group}
  run:
    - {name: a, script: "echo $LEVEL"}
    - {name: b, script: "echo ${{ steps.a.status }}"}
    - {name: c, exec: {command: [echo, "$X", "${{ env.LEVEL }}"]}}
- {name: after, script: "echo ${{ steps.a.outputs.said }} ${{ steps.group.status }} [$LEVEL]"}
`).files(map[string]string{"echo/step.yml": echoStep})
	res := tr.succeed()
	require.Equal(t, "group\nsuccess\n$X group\nouter 1 success []\n", tr.stdout.String())
	require.Equal(t, Sequence, res.Steps[1].Kind)
	require.Equal(t, []string{"a success", "b success", "c success"}, statuses(res.Steps[1].Steps))
}

func TestMessageOfANestedFailureNamesTheSteps(t *testing.T) {
	res := newTrial(t, `- {name: outer, step: ./o}`).
		files(map[string]string{"o/step.yml": "{}\n---\nrun: [{name: inner, script: exit 5}, {name: rest, script: x}]\n"}).
		fail(`step "outer": step "inner": exec: exit status 5`)
	require.Equal(t, 5, res.ExitCode)
	require.Equal(t, 5, res.Steps[0].ExitCode)
	require.Equal(t, []string{"inner failure", "rest skipped"}, statuses(res.Steps[0].Steps))
}

// slowFetcher fetches until its context ends.
type slowFetcher struct{ started chan struct{} }

func (f slowFetcher) Fetch(
	ctx context.Context, _ *pb.Reference, _ component.Credentials,
) (*component.Component, error) {
	close(f.started)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestFetchEndsWithTheJobAndWithTheTimeoutOfItsStep(t *testing.T) {
	const list = "- {name: a, step: example.com/a@v1}\n- {name: b, script: echo always, when: always}\n"
	t.Run("stop", func(t *testing.T) {
		f := slowFetcher{make(chan struct{})}
		tr := newTrial(t, list, func(c *Config) { c.Fetcher = f })
		results := tr.start(t.Context())
		<-f.started
		tr.Stop(cancelled, patience)
		res := <-results
		require.Equal(t, Cancelled, res.Status)
		require.Equal(t, cancelled, res.Message)
		require.Equal(t, []string{"a cancelled", "b success"}, statuses(res.Steps))
	})
	t.Run("the end of the context", func(t *testing.T) {
		f := slowFetcher{make(chan struct{})}
		tr := newTrial(t, list, func(c *Config) { c.Fetcher = f })
		ctx, cancel := context.WithCancelCause(t.Context())
		results := tr.start(ctx)
		<-f.started
		cancel(errors.New("the job was killed"))
		res := <-results
		require.Equal(t, "the job was killed", res.Message)
		require.Equal(t, []string{"a cancelled", "b skipped"}, statuses(res.Steps))
	})
	t.Run("timeout", func(t *testing.T) {
		tr := newTrial(
			t,
			strings.Replace(list, "v1}", "v1, timeout: 50ms}", 1),
			func(c *Config) { c.Fetcher = slowFetcher{make(chan struct{})} },
		)
		res := tr.fail(`step "a": fetch https://example.com/a@v1: timeout: the step "a" ran for longer than 50ms`)
		require.Equal(t, []string{"a failure", "b success"}, statuses(res.Steps))
	})
}

// Symptom: lists of steps that do not run took memory of the step runner without a bound.
func TestJobSkipsABoundedNumberOfSteps(t *testing.T) {
	var many, calls strings.Builder
	many.WriteString("{}\n---\nrun:\n")
	for i := range 9999 {
		fmt.Fprintf(&many, "- {name: s%d, script: x, when: on_failure}\n", i)
	}
	for i := range 11 {
		fmt.Fprintf(&calls, "- {name: s%d, step: ./many}\n", i)
	}
	res := newTrial(t, calls.String(), func(c *Config) { c.Observe = nil }).
		files(map[string]string{"many/step.yml": many.String()}).
		fail(`step "s9": the job has more than 100000 steps`)
	require.Equal(t, Success, res.Steps[8].Status)

	// The steps of all calls were in memory before the first was counted.
	again := strings.ReplaceAll(many.String(), "when: on_failure", "if: 'false'")
	again = strings.Replace(again, "run:\n", "run:\n- {name: again, step: .}\n", 1)
	newTrial(t, "- {name: a, step: ./many}\n", func(c *Config) { c.Observe = nil }).
		files(map[string]string{"many/step.yml": again}).
		fail(`step "a": ` + strings.Repeat(`step "again": `, 9) + "the job has more than 100000 steps")
}
