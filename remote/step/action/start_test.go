package action

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestMistakesBetweenTheJobsOfAWorkflowAreToldWithTheirPlace(t *testing.T) {
	const steps = "steps: [{run: x}]"
	for line := range strings.Lines(`{needs: c} => w.yml:4:14: the job "b" needs "c", and there is no such job
{needs: [a, bb]} => w.yml:4:18: the job "b" needs "bb", and there is no such job
{needs: {a: 1}} => w.yml:4:14: a need must be a text, not a mapping
{needs: a, env: {X: "${{ needs.a.outputs.y }}"}} => w.yml:4: env X: the job "a" has no output "y"; it has "out", "Two"
{needs: a, env: {X: "${{ needs['a'].outputs.outt }}"}} => the job "a" has no output "outt", did you mean "out"?
{needs: a, strategy: {matrix: {v: ["${{ needs.a.outputs.z }}"]}}} => w.yml:4: an item of v: the job "a" has no output
{if: github.ref b} => w.yml:4:11: if: Unexpected symbol: 'b'
{if: matrix.a} => w.yml:4:11: if: Unrecognized named-value: 'matrix'
{if: secrets.A} => w.yml:4:11: if: Unrecognized named-value: 'secrets'
{if: hashFiles('a')} => w.yml:4:11: if: Unrecognized function: 'hashFiles'
{timeout-minutes: soon} => w.yml:4:24: timeout-minutes is a number above 0, not a text
{timeout-minutes: -1} => w.yml:4:24: timeout-minutes is a number above 0, not -1
{continue-on-error: 3} => w.yml:4:26: continue-on-error is true or false, not 3
{concurrency: [a]} => w.yml:4:20: concurrency is a group or a mapping, not a list
{concurrency: {cancel-in-progress: true}} => w.yml:4:20: concurrency has no group
{concurrency: {group: a, cancel-in-progress: x}} => w.yml:4:51: cancel-in-progress is true or false
{concurrency: "${{ secrets.A }}"} => w.yml:4:20: concurrency: Unrecognized named-value
{runs-on: [{a: 1}]} => w.yml:4:16: a label of runs-on must be a text, not a mapping
`) {
		job, want, _ := strings.Cut(strings.TrimSpace(line), " => ")
		job = strings.TrimSuffix(job, "}") + ", " + steps + "}"
		_, err := ReadWorkflow("w.yml", []byte("jobs:\n  a: {outputs: {out: x, Two: y}, "+steps+"}\n\n  b: "+job+"\n"))
		require.ErrorContains(t, err, want, job)
	}
	for _, job := range []string{
		"{needs: a, if: \"needs.A.result == needs['a'].outputs.OUT\", " + steps + "}",
		"{needs: a, if: 'contains(needs.*.result, toJSON(needs))', " + steps + "}",
		"{needs: c, if: needs.c.outputs.any, " + steps + "}",
	} {
		others := "jobs:\n  a: {outputs: {out: x}, " + steps + "}\n  c: {uses: ./.github/workflows/w.yml}\n"
		_, err := ReadWorkflow("w.yml", []byte(others+"  b: "+job+"\n"))
		require.NoError(t, err, job)
	}
}

// A public workflow reads a job that it does not need: GitHub runs it.
func TestAJobThatIsNotNeededIsAWarning(t *testing.T) {
	w, err := ReadWorkflow("w.yml", []byte(`
on: push
jobs:
  a: {steps: [{run: x}]}
  b: {steps: [{uses: a/b@v1, with: {save: "${{ needs.a.result == 'success' }}"}}]}
`))
	require.NoError(t, err)
	const want = `w.yml:5: with save: needs has no job "a", so that this is empty; add it to the needs of the job "b"`
	require.Equal(t, []string{want}, w.Notes())
	require.EqualError(t, w.Warnings()[0], want)
}

func TestKeysAreReadWhenABuildStarts(t *testing.T) {
	w, err := ReadWorkflow("w.yml", []byte(`
name: N
jobs:
  a: {outputs: {minutes: x}, steps: [{run: x}]}
  b:
    needs: a
    runs-on: ["self-hosted", "${{ matrix.os }}"]
    timeout-minutes: ${{ fromJSON(needs.a.outputs.minutes) }}
    continue-on-error: ${{ matrix.os == 'linux' }}
    concurrency:
      group: ${{ github.workflow }}-${{ vars.ENV }}-${{ inputs.x }}
      cancel-in-progress: ${{ strategy.job-index == 1 }}
    steps: [{run: x}]
  c: {runs-on: {group: large}, concurrency: g, steps: [{run: x}]}
  d: {runs-on: {labels: [a, 1]}, timeout-minutes: 1e8, steps: [{run: x}]}
`))
	require.NoError(t, err)
	v := Values{
		Inputs: map[string]any{"x": true}, Vars: []engine.Variable{{Key: "ENV", Value: "prod"}},
		Needs: map[string]Outcome{"a": {Result: Succeeded, Outputs: map[string]string{"minutes": "1.5"}}},
	}
	b := &Build{Matrix: map[string]any{"os": "linux"}, Strategy: map[string]any{"job-index": 1.0}}
	got, err := w.Jobs[1].Start(v, b)
	require.NoError(t, err)
	require.Equal(t, Start{
		MayFail: true, Timeout: 90 * time.Second, Group: "N-prod-true", CancelInProgress: true,
		Labels: []string{"self-hosted", "linux"},
	}, got)
	v.Needs["a"] = Outcome{Result: Succeeded, Outputs: map[string]string{"minutes": "[]"}}
	_, err = w.Jobs[1].Start(v, b)
	require.EqualError(t, err, "w.yml:8:22: timeout-minutes is a number above 0, not a list")
	got, err = w.Jobs[2].Start(v, b)
	require.NoError(t, err)
	require.Equal(t, Start{Group: "g", Labels: []string{"group=large"}}, got)
	got, err = w.Jobs[3].Start(v, b)
	require.NoError(t, err)
	require.Equal(t, Start{Timeout: maxMinutes * time.Minute, Labels: []string{"a", "1"}}, got)
	require.Equal(t, "w.yml:5:3", w.Jobs[1].Place())
}

func TestLabelsOfOneJobHaveNoEffect(t *testing.T) {
	for labels, want := range map[string][]string{
		"ubuntu-latest": nil, "[self-hosted, Linux]": nil, "${{ needs.a.outputs.x }}": nil,
		"[self-hosted, 'zone=${{ matrix.z }}']": {"w.yml:3: runs-on has no effect for one job: choose its VM by a label " +
			"(--select of run, --label of submit), or add --needs"},
	} {
		j, err := ReadJob("w.yml", []byte("jobs:\n  a:\n    runs-on: "+labels+"\n    steps: [{run: x}]\n"), "")
		require.NoError(t, err)
		require.Equal(t, want, j.LabelNotes(Values{}, map[string]any{"z": "b"}), labels)
	}
}

func TestGroupOfAWholeWorkflow(t *testing.T) {
	for text, want := range map[string]string{
		"g": "g false", "{group: 'x-${{ inputs.a }}', cancel-in-progress: '${{ inputs.a == 1 }}'}": "x-1 true", "": " false",
		"[a]":                               "w.yml:1:14: concurrency is a group or a mapping, not a list",
		"{group: a, cancel-in-progress: x}": "w.yml:1:45: cancel-in-progress is true or false",
		"${{ secrets.A }}":                  "w.yml:1:14: concurrency: Unrecognized named-value",
		"'${{ fromJSON(inputs.b) }}'":       "w.yml:1:14: concurrency is a group or a mapping, not a list",
	} {
		w, err := ReadWorkflow("w.yml", []byte("concurrency: "+text+"\non: push\njobs: {a: {steps: [{run: x}]}}\n"))
		got := ""
		if err == nil {
			var group string
			var cancels bool
			group, cancels, err = w.Group(Values{Inputs: map[string]any{"a": 1.0, "b": "[1]"}})
			got = fmt.Sprint(group, " ", cancels)
		}
		if err != nil {
			got = err.Error()
		}
		require.Contains(t, got, want, text)
	}
}

func TestNotesOfAWholeWorkflow(t *testing.T) {
	w, err := ReadWorkflow("w.yml", []byte(`
on: [push, pull_request]
concurrency: g
permissions: {id-token: write, contents: read}
jobs:
  a: {needs: [], if: true, timeout-minutes: 1, permissions: {}, colour: red, environment: x, steps: [{run: x}]}
  b: {services: {db: {image: x}}, concurrency: x, strategy: {matrix: {a: [1]}}, steps: [{run: x}]}
  c: {uses: ./.github/workflows/other.yml, with: {a: 1}, secrets: inherit}
  d: {outputs: {x: y}, steps: [{uses: actions/cache/restore@v4}, {uses: a/b@v4}, {uses: actions/upload-artifact@v4}]}
`))
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{w.Jobs[1].UsesActions(), w.Jobs[3].UsesActions()})
	require.Equal(t, []bool{false, true}, []bool{w.Jobs[0].HasOutputs(), w.Jobs[3].HasOutputs()})
	require.Equal(t, []string{"push", "pull_request"}, w.Events)
	require.Equal(t, []string{
		"w.yml:4: permissions has no effect: a token has the permissions that it was made with",
		"w.yml:4: id-token has no effect: there is no OIDC service, so getting a token fails; pass a secret " +
			"(--var NAME --mask NAME)",
	}, w.Notes())
	require.Equal(t, []string{
		"w.yml:6: permissions has no effect: a token has the permissions that it was made with",
		"w.yml:6: colour has no effect: unknown key",
		"w.yml:6: environment has no effect: there are no environments with rules",
	}, w.Jobs[0].Notes(false))
	require.Equal(t, []string{"w.yml:7: the service db is not started: --in-image runs the job in its " +
		"container, beside its services"}, w.Jobs[1].Notes(false))
	uses, is := w.Jobs[2].Uses()
	require.True(t, is)
	require.Equal(t, Uses{Text: "./.github/workflows/other.yml", Path: ".github/workflows/other.yml"}, uses)
	require.Equal(t, "w.yml:8:7", w.Jobs[2].UsesPlace())
	_, is = w.Jobs[1].Uses()
	require.False(t, is)
}

// Whatever the text, reading it and evaluating its jobs ends without a panic, and within the bounds.
func FuzzWorkflow(f *testing.F) {
	for _, job := range []string{
		"{needs: [b], if: always() && needs.b.result, steps: [{run: x}]}",
		"{strategy: {matrix: {a: [1, {b: c}], include: [{a: 1}], exclude: [{a: {b: c}}]}}, steps: [{run: x}]}",
		"{strategy: {matrix: \"${{ fromJSON(github.x) }}\"}, steps: [{run: x}]}",
		"{concurrency: {group: a}, timeout-minutes: 1, continue-on-error: \"${{ matrix.a }}\", uses: ./x}",
	} {
		f.Add("on: push\nx: &a [1]\njobs:\n  a: " + job + "\n  b: {outputs: {o: x}, runs-on: *a, steps: [{run: x}]}\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ReadWorkflow("w.yml", []byte(text))
		_, _ = w.Warnings(), w.Notes()
		if err != nil {
			return
		}
		v := Values{Needs: map[string]Outcome{"b": {Result: Failed, Bad: true}}}
		for _, j := range w.Jobs {
			_, _, _ = j.Wanted(v)
			_, _ = j.Place(), j.Notes(false)
			builds, err := j.Builds(v)
			if err != nil {
				continue
			}
			require.NotEmpty(t, builds.List)
			require.LessOrEqual(t, len(builds.List), maxBuilds)
			names := map[string]bool{}
			for i := range builds.List {
				require.False(t, names[builds.List[i].Name], "two builds have a name")
				names[builds.List[i].Name] = true
				_, _ = j.Start(v, &builds.List[i])
			}
		}
	})
}
