package action

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestMistakesInADescriptionAreToldWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"":         "action.yml: the text is empty",
		"name: a":  "action.yml:1:1: runs is missing",
		"- a":      "action.yml:1:1: the action must be a mapping",
		"runs: {}": "action.yml:1:7: using is missing; write composite, docker or node24",
		"runs:\n  using: deno": `action.yml:2:10: using "deno" is not supported; it is composite, docker, node12, node16, ` +
			"node20 or node24",
		"runs: {using: plugin}":                                                     "using \"plugin\" is not supported",
		"runs: {using: node24}":                                                     "main is missing",
		"runs: {using: docker}":                                                     "image is missing",
		"runs: {using: composite}":                                                  "steps is missing",
		"runs:\n  using: composite\n  steps:\n    - run: x":                         "action.yml:4:12: shell is missing",
		"runs: {using: composite, steps: [{}]}":                                     "neither run nor uses",
		"runs: {using: composite, steps: [{uses: ./a, run: x, shell: sh}]}":         "both run and uses",
		"runs: {using: composite, steps: [{uses: ./a, xwith: {}}]}":                 `unknown key "xwith"`,
		"runs: {using: composite, steps: [{id: a, uses: ./a}, {id: A, uses: ./a}]}": `the id "A" is taken`,
		"runs: {using: composite, steps: [{uses: ./a, with: [x]}]}":                 "with must be a mapping",
		"runs: {using: composite, steps: [{uses: ./a, if: inptus.a}]}":              "action.yml:1: if: Unrecognized",
		"runs: {using: composite, steps: [{uses: ./a, env: {A: '${{ vars.A }}'}}]}": "env A: Unrecognized",
		"outputs: {a: {value: '${{ x }}'}}\nruns: {using: composite, steps: []}":    "output a: Unrecognized",
		"runs: {using: composite, using: docker}":                                   `the key "using" is given twice`,
		"a: &a [x]\nb: &b [*a, *a]\nruns: *a":                                       "runs must be a mapping",
		"runs: " + strings.Repeat("[", 100) + strings.Repeat("]", 100):              "not valid YAML",
		"a: \xff":                           "not valid UTF-8",
		strings.Repeat("#", lang.MaxText+1): "has more than 1 MiB",
	} {
		_, err := parseManifest("action.yml", []byte(text))
		require.ErrorContains(t, err, want, "%.80q", text)
	}
}

func TestDescriptionMustBeARegularFile(t *testing.T) {
	dir := t.TempDir()
	_, err := readManifest(os.OpenFile, dir, "./a")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "find the action ./a: it has no action.yml, action.yaml or Dockerfile")
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "action.yml"), 0o600))
	_, err = readManifest(os.OpenFile, dir, "./a")
	require.ErrorContains(t, err, "read the action ./a: ")
}

func TestAliasesCannotMakeADescriptionHuge(t *testing.T) {
	list := "*s"
	for range 3000 {
		list += ", *s"
	}
	text := "s: &s {uses: ./a, with: {a: b, c: d, e: f, g: h, i: j}, env: {a: b, c: d, e: f, g: h, i: j}}\nruns: " +
		"{using: " +
		"composite, steps: [" + list + "]}\n"
	_, err := parseManifest("action.yml", []byte(text))
	require.NoError(t, err)
	_, err = parseManifest("action.yml", []byte(strings.Replace(text, list, strings.Repeat(list+", ", 8)+"*s", 1)))
	require.Error(t, err)
}

// Symptom: validate, and a step runner that could not be stopped meanwhile, read the expressions of a text of half a
// MiB for each of its 40,000 uses: for hours.
func TestAliasesCannotMakeTheTextsOfAWorkflowHuge(t *testing.T) {
	racefree.Only(t)
	job := func(steps string) string { return "jobs: {a: {steps: [" + steps + "]}}\n" }
	text := "x: &x '" + strings.Repeat("${{ 1 }}", 64<<10) + "'\n" + job(strings.Repeat("{run: *x}, ", 9))
	_, err := ReadJob("w.yml", []byte(text), "")
	require.ErrorContains(t, err, "w.yml:2:103: aliases and other repeated parts make this text too large")
	text = "k: &k {" + strings.Repeat("k", 512<<10) + ": v}\n" + job(strings.Repeat("{run: x, env: *k}, ", 9))
	_, err = ReadJob("w.yml", []byte(text), "")
	require.ErrorContains(t, err, "aliases and other repeated parts make this text too large")
	_, err = ReadJob("w.yml", []byte(strings.Replace(text, "{run: x, env: *k}, ", "", 3)), "")
	require.NoError(t, err)
}

func TestEntriesAreReadAsTheRunnerReadsThem(t *testing.T) {
	for text, want := range map[string][]setting{
		"":                       nil,
		"a=b\n\nc=d=e\n":         {{"a", "b", 1}, {"c", "d=e", 3}},
		"a=\r\nb=x\r\n":          {{"a", "", 1}, {"b", "x", 2}},
		"a<<E\nx\n\ny\nE\nb=<<E": {{"a", "x\n\ny", 1}, {"b", "<<E", 6}},
		"a<<E\nE\n":              {{"a", "", 1}},
		"a<<E\r\nx\r\nE":         {{"a", "x", 1}},
		"a<<E=F\nx\nE=F":         {{"a", "x", 1}},
		"a b<<ghadelimiter_1\n<<\nE\nghadelimiter_1": {{"a b", "<<\nE", 1}},
	} {
		got, err := parseEntries(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"=x", "<<E\nE", "a<<\n", "a<<E\nx", "a", "a<<E\n E\n"} {
		_, err := parseEntries(text)
		require.Error(t, err, text)
	}
}

// A mistake in an expression failed its step, after all steps before it had run, and validate did not find it.
func TestMistakesInTheExpressionsOfAWorkflowAreFoundBeforeItRuns(t *testing.T) {
	for step, want := range map[string]string{
		"{run: x, if: github.ref == 'a' && githb.x}":            "w.yml:4: if: Unrecognized named-value: 'githb'",
		"{run: x, if: '${{ isfine() }}'}":                       "w.yml:4: if: Unrecognized function: 'isfine'",
		"{run: 'echo ${{ 1 + 1 }}'}":                            "w.yml:4: run: Unexpected symbol",
		"{run: 'echo ${{ secrets.A'}":                           "w.yml:4: run: The expression is not closed",
		"{uses: ./a, with: {x: '${{ hashFiles() }}'}}":          "w.yml:4: with x: Too few parameters supplied: 'hashFiles'",
		"{run: x, env: {A: '${{ format(1) }}', B: '${{ x }}'}}": "w.yml:4: env B: Unrecognized named-value: 'x'",
	} {
		_, err := ReadJob("w.yml", []byte("jobs:\n  a:\n    steps:\n      - "+step+"\n"), "a")
		require.ErrorContains(t, err, want)
		_, err = ReadWorkflow("w.yml", []byte("jobs:\n  a:\n    steps:\n      - "+step+"\n"))
		require.ErrorContains(t, err, want)
	}
}

// A mistake in a job that no step can run failed the job when it began, or, in its outputs, after its last step, and
// validate and actions vendor did not find it.
func TestMistakesInAJobOfAWorkflowAreFoundBeforeItRuns(t *testing.T) {
	const steps = "steps: [{uses: a/b@v1}]"
	for job, want := range map[string]string{
		"{env: [A], " + steps + "}":                                "w.yml:2:12: env must be a mapping",
		"{runs-on: x}":                                             `w.yml:2:3: the job "a" has no steps`,
		"{env: {A: '${{ nope.x }}'}, " + steps + "}":               "w.yml:2: env A: Unrecognized named-value: 'nope'",
		"{if: always() && nope, " + steps + "}":                    "w.yml:2:11: if: Unrecognized named-value: 'nope'",
		"{container: '${{ nope }}', " + steps + "}":                "w.yml:2: container: image: Unrecognized named-value",
		"{services: {d: {env: {A: '${{ x }}'}}}, " + steps + "}":   "w.yml:2: d: A: Unrecognized named-value: 'x'",
		"{steps: [{uses: a/b}]}":                                   "w.yml:2:22: uses: the action is not valid; write owner/",
		"{steps: [{uses: ''}]}":                                    "w.yml:2:22: uses: action is empty",
		"{outputs: {a: '${{ step.x.outputs.y }}'}, " + steps + "}": "w.yml:2: output a: Unrecognized named-value: 'step'",
	} {
		text := "jobs:\n  a: " + job + "\n"
		_, err := ReadJob("w.yml", []byte(text), "a")
		require.ErrorContains(t, err, want)
		_, err = ReadWorkflow("w.yml", []byte(text))
		require.ErrorContains(t, err, want)
	}
	text := "jobs:\n  a: {if: \"success('b') || failure('b', 'c')\", " + steps + "}\n"
	_, err := ReadJob("w.yml", []byte(text), "")
	require.NoError(t, err, "GitHub runs it")
	_, err = ReadWorkflow("w.yml", []byte("on: push\n"))
	require.ErrorContains(t, err, "w.yml: it has no jobs")
	_, err = ReadJob("w.yml", []byte("---\njobs: {a: {"+steps+"}}\n---\njobs: {b: {"+steps+"}}\n"), "")
	require.ErrorContains(t, err, "w.yml:4:1: this is a second document") // it was left out without a word
	_, err = ReadJob("w.yml", []byte("---\njobs: {a: {"+steps+"}}\n...\n"), "")
	require.NoError(t, err)
	text = "env: {A: a}\njobs:\n  a: {env: {B: b}, " + steps + "}\n  b: {uses: ./.github/workflows/x.yml, with: {c: d}}\n"
	w, err := ReadWorkflow("w.yml", []byte(text))
	require.NoError(t, err, "GitHub runs it")
	require.Equal(t, []string{"a/b@v1"}, w.Uses())
}

// Symptom: a mistake under another key, such as on, left the completion of --job-name without names.
func TestJobsOfAWorkflowWithMistakesHaveNames(t *testing.T) {
	text := "on: {workflow_dispatch: {inputs: [x]}}\nenv: [x]\njobs: {b: {}, a: [x]}\n"
	_, err := ReadJob("w.yml", []byte(text), "a")
	require.ErrorContains(t, err, "w.yml:1:34: inputs must be a mapping")
	require.Equal(t, []string{"b", "a"}, WorkflowJobs([]byte(text)))
	require.Equal(t, []string{"a"}, WorkflowJobs([]byte("jobs: {a: {}}\n---\njobs: {b: {}}\n")))
	require.Empty(t, WorkflowJobs([]byte("jobs: [x]")))
	require.Empty(t, WorkflowJobs([]byte("jobs: [")))
	require.Empty(t, WorkflowJobs(nil))
}

// What the check knows is what a running step knows.
func TestCheckKnowsTheNamesOfARunningStep(t *testing.T) {
	tr := newTrial(t)
	var text strings.Builder
	for name := range knownNames(true).Values {
		text.WriteString("${{ toJSON(" + name + ") && '' }}")
	}
	for name := range knownNames(true).Functions {
		if name != "hashfiles" {
			text.WriteString("${{ " + name + "() && '' }}")
		}
	}
	tr.workflow("- env: {A: \"" + text.String() + "${{ hashFiles('x') }}\"}\n  run: echo checked\n")
	tr.succeed()
}

func TestJobsOfAWorkflowAreChosenByName(t *testing.T) {
	text := "on: push\nname: CI\npermissions: {}\njobs:\n" +
		"  a: {steps: [{run: x}], services: {db: {image: x}}, strategy: {}, x: 1}\n" +
		"  b: {uses: ./.github/workflows/x.yml}\n  c: {}\n"
	j, err := ReadJob("w.yml", []byte(text), "a")
	require.NoError(t, err)
	var notes strings.Builder
	require.NoError(t, j.writeNotes(&notes, true, false))
	require.Equal(t, 3, strings.Count(notes.String(), "\n"))
	require.Contains(t, notes.String(), "note: w.yml:3: permissions has no effect: a token")
	require.Contains(t, notes.String(), "note: w.yml:5: the service db is not started: --in-image ")
	require.Contains(t, notes.String(), "note: w.yml:5: x has no effect: unknown key\n")
	require.NoError(t, j.writeNotes(&notes, false, true))
	require.Contains(t, notes.String(), "note: w.yml:5: strategy has no effect: the job runs once")
	for name, want := range map[string]string{
		"": "w.yml has 3 jobs; choose one with --job-name: a, b, c", "b": "calls another workflow", "c": "has no steps",
		"d": `there is no job "d"; there are a, b, c`,
	} {
		_, err := ReadJob("w.yml", []byte(text), name)
		require.ErrorContains(t, err, want)
	}
}

// A misspelled key of defaults was left out without a word, and the steps ran in another directory or shell.
func TestUnknownKeysOfDefaultsAreTold(t *testing.T) {
	text := "defaults: {run: {workng-directory: x}}\njobs:\n  a: {defaults: {runs: {shell: sh}}, steps: [{run: x}]}\n"
	j, err := ReadJob("w.yml", []byte(text), "a")
	require.NoError(t, err)
	var notes strings.Builder
	require.NoError(t, j.writeNotes(&notes, true, false))
	require.Equal(t, "note: w.yml:1: workng-directory has no effect: unknown key\n"+
		"note: w.yml:3: runs has no effect: unknown key\n", notes.String())
}

// Symptom: local --in-image refused a job whose env has parts of the event, or other contexts that its steps have.
func TestContainerOfAJobSeesTheJobsEnv(t *testing.T) {
	text := `jobs:
  a:
    container: {image: x, env: {LEVEL: "${{ env.A }}"}}
    env: {A: "${{ fromJSON(github.event.inputs.level).name }}"}
    steps: [{run: x}]
`
	vars := []engine.Variable{{Key: "GITHUB_EVENT", Value: `{"inputs": {"level": "{\"name\": \"low\"}"}}`}}
	j, err := ReadJob("w.yml", []byte(text), "")
	require.NoError(t, err)
	made, err := j.Container(nil, nil, nil, vars)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"LEVEL": "low"}, made.Env)

	j, err = ReadJob("w.yml", []byte("jobs: {a: {env: {A: '${{ runner.temp }}'}, container: x, steps: [{run: x}]}}"), "")
	require.NoError(t, err)
	made, err = j.Container(nil, nil, nil, nil)
	require.NoError(t, err)
	require.YAMLEq(t, "image: {name: x}", string(made.Text))
}

func TestContainerOfAJobHasItsExpressionsEvaluated(t *testing.T) {
	text := `env: {B: "${{ vars.LEVEL }}"}
jobs:
  a:
    container:
      image: docker://node:${{ matrix.node }}
      env: {LEVEL: "${{ vars.LEVEL }}", TOKEN: "${{ secrets.TOKEN }}"}
      options: --cpus 1
    services:
      db: {image: 'docker://postgres:${{ github.ref_name }}', env: {A: "${{ env.B }}"}, ports: [2, '80:81/udp'], x: 1}
      none: {image: "${{ matrix.none }}"}
    steps: [{run: x}]
`
	vars := []engine.Variable{
		{Key: "LEVEL", Value: "low"},
		{Key: "TOKEN", Value: "geheim", Masked: true},
		{Key: "CI_COMMIT_REF_NAME", Value: "17"},
	}
	j, err := ReadJob("w.yml", []byte(text), "")
	require.NoError(t, err)
	made, err := j.Container(map[string]any{"node": 24.0}, nil, nil, vars)
	require.NoError(t, err)
	require.YAMLEq(t, `{image: {name: "node:24"}, services: [{name: "postgres:17", alias: db, variables: {A: low}}]}`,
		string(made.Text))
	require.Equal(t, map[string]string{"LEVEL": "low", "TOKEN": "geheim"}, made.Env)
	require.Equal(t, map[string]any{"db": map[string]any{"ports": map[string]string{"2": "2", "81": "81"}}},
		made.Services)
	require.Equal(t, []string{"w.yml:4: the option --cpus of container has no effect"}, made.Notes)
	var notes strings.Builder
	require.NoError(t, j.writeNotes(&notes, true, true))
	require.Equal(t, []string{
		"note: w.yml:9: ports of db has no effect",
		"note: w.yml:9: x of db has no effect",
	}, regexp.MustCompile(`note: w.yml:\d+: .* has no effect`).FindAllString(notes.String(), -1))
	notes.Reset()
	require.NoError(t, j.writeNotes(&notes, true, false))
	require.Contains(t, notes.String(), "note: w.yml:4: container has no effect: --in-image")

	j, err = ReadJob("w.yml", []byte(strings.Replace(text, "matrix.node", "fromJSON(matrix.node)", 1)), "")
	require.NoError(t, err)
	_, err = j.Container(nil, nil, nil, nil)
	require.ErrorContains(t, err, "w.yml:5: image: ")
	j, err = ReadJob("w.yml", []byte("jobs: {a: {steps: [{run: x}]}}"), "")
	require.NoError(t, err)
	made, err = j.Container(nil, nil, nil, nil)
	require.NoError(t, err)
	require.Empty(t, made.Text)
}

func TestOptionsOfContainersAreThoseOfDocker(t *testing.T) {
	text := `jobs:
  a:
    container:
      image: x
      options: >-
        --user 1000:1000 --cap-add SYS_ADMIN --privileged -e A=b --env=C='d "e"' --health-cmd true
    services:
      db:
        image: postgres
        env: {A: x}
        options: >-
          --health-cmd "pg_isready -U \"me\""
          --health-interval ${{ matrix.every }} --health-timeout=5s --health-retries 5 --health-start-period 1s
          -e A=y --user me --entrypoint /run.sh
      quiet: {image: redis, options: --no-healthcheck}
      all: ${{ fromJSON('{"image":"y","options":"--health-cmd ''a b''"}') }}
    steps: [{run: x}]
`
	j, err := ReadJob("w.yml", []byte(text), "")
	require.NoError(t, err)
	made, err := j.Container(map[string]any{"every": "10s"}, nil, nil, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "b", "C": `d "e"`}, made.Env)
	require.YAMLEq(t, `
image: {name: x, docker: {user: "1000:1000"}}
services:
  - {name: postgres, alias: db, variables: {A: "y"}, entrypoint: [/run.sh], healthcheck: {
      test: 'pg_isready -U "me"', interval: 10s, timeout: 5s, retries: "5", start_period: 1s}}
  - {name: redis, alias: quiet, variables: {}, healthcheck: {disable: true}}
  - {name: "y", alias: all, variables: {}, healthcheck: {test: a b}}
`, string(made.Text))
	require.Equal(t, []string{
		"w.yml:3: the option --cap-add of container has no effect",
		"w.yml:3: the option --privileged of container has no effect",
		"w.yml:3: the option --health-cmd of container has no effect",
		"w.yml:8: the option --user of db has no effect",
	}, made.Notes)
	for options, want := range map[string]string{
		`--health-cmd "a`:      `w.yml:3: options: the quote " has no end`,
		"${{ fromJSON('x') }}": "w.yml:3: options: ",
	} {
		j, err := ReadJob("w.yml", []byte("jobs:\n  a:\n    services: {db: {image: x, options: '"+
			strings.ReplaceAll(options, "'", "''")+"'}}\n    steps: [{run: x}]\n"), "")
		require.NoError(t, err)
		_, err = j.Container(nil, nil, nil, nil)
		require.ErrorContains(t, err, want)
	}
}

// FuzzManifest finds panics, and texts that take too long.
func FuzzManifest(f *testing.F) {
	f.Add([]byte("runs: {using: composite, steps: [{run: x, shell: sh}]}"))
	f.Add([]byte("inputs: {a: {default: 1.10}}\nruns: {using: node20, main: x, post: y}"))
	f.Add([]byte("a: &a {b: *a}\nruns: *a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest("f", text)
		require.True(t, (m == nil) == (err != nil))
		_, _ = ReadJob("f", text, "")
	})
}

// FuzzEntries holds that a value that is written as the toolkit writes it is read as it was.
func FuzzEntries(f *testing.F) {
	f.Add("name", "value", "rest=1")
	f.Add("a", "x\r\ny\n", "<<")
	f.Fuzz(func(t *testing.T, name, value, rest string) {
		const delimiter = "ghadelimiter_0"
		_, _ = parseEntries(rest)
		if name == "" || strings.ContainsAny(name+value, "=\r\n<") || strings.Contains(value, delimiter) {
			return
		}
		got, err := parseEntries(name + "<<" + delimiter + "\n" + value + "\n" + delimiter + "\n")
		require.NoError(t, err)
		require.Equal(t, []setting{{name, value, 1}}, got)
	})
}
