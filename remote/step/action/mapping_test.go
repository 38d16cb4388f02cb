package action

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// mappingsFile has the places of the mappings in a workflow and in an action.yml, and whether GitHub takes an
// expression there instead: it does if the mapping, or one around it, has contexts in the schema. The table is from
// workflow-v1.0 and action-v1.0 of the npm package @actions/workflow-parser 0.3.61. A * is any key, a - an item of a
// list.
const mappingsFile = "testdata/mappings.tsv"

// notRead are the places that this package does not read, where a mapping is not needed, either.
var notRead = []string{"permissions", "jobs.*.permissions", "jobs.*.secrets", "jobs.*.snapshot", "jobs.*.with"}

// An expression in the place of a mapping was an error of this program, in places where GitHub takes it.
//
//stepmux:faults users | An expression is refused where the language takes one in place of a mapping
func TestAnExpressionStandsForAMappingWhereGitHubTakesIt(t *testing.T) {
	table, err := os.ReadFile(mappingsFile)
	require.NoError(t, err)
	count := 0
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, cells, 3, line)
		kind, path, takes := cells[0], strings.Split(cells[1], "."), cells[2] == "expression"
		if slices.Contains(notRead, cells[1]) {
			continue
		}
		count++
		for _, value := range []string{"${{ fromJSON(github.event.x) }}", "a ${{ github.ref }}"} {
			var err error
			if kind == "workflow" {
				text := "on: push\n" + nested(path, value)
				if path[0] != "jobs" {
					text += "jobs: {a: {steps: [{run: x}]}}\n"
				} else if len(path) > 2 && path[2] != "steps" {
					text += "    steps: [{run: x}]\n"
				}
				_, err = ReadJob("w.yml", []byte(text), "")
			} else {
				using := map[bool]string{true: "  using: composite\n", false: "  using: docker\n  image: Dockerfile\n"}
				text := nested(path, value)
				if path[0] == "runs" && len(path) > 1 {
					text += using[path[1] == "steps"]
				} else if path[0] != "runs" {
					text += "runs: {using: composite, steps: []}\n"
				}
				_, err = parseManifest("action.yml", []byte(text))
			}
			// A container and a service are the name of an image, too, and many places have other forms.
			text := value[0] == 'a' && !slices.Contains([]string{"env", "with", "services", "run"}, path[len(path)-1])
			switch {
			case text && takes:
			case takes && value[0] == '$':
				require.NoError(t, err, "%s %s", cells[1], value)
			default:
				require.Error(t, err, "%s %s", cells[1], value)
			}
		}
	}
	require.Greater(t, count, 25)
}

// nested returns YAML with a value at a path. A step has a run or, beside with, a uses.
func nested(path []string, value string) string {
	var out strings.Builder
	indent := ""
	for i, key := range path {
		last := i == len(path)-1
		switch {
		case key == "-" && last:
			out.WriteString(indent + "- " + value + "\n")
		case key == "-" && path[len(path)-1] == "with":
			out.WriteString(indent + "- uses: a/b@v1\n")
		case key == "-" && path[i-1] == "steps":
			out.WriteString(indent + "- run: x\n" + indent + "  shell: sh\n")
		case key == "-":
			out.WriteString(indent + "- x: x\n")
		default:
			if key == "*" {
				key = "k"
			}
			out.WriteString(indent + key + ":")
			if last {
				out.WriteString(" " + value)
			}
			out.WriteString("\n")
		}
		indent += "  "
	}
	return out.String()
}

// The values of such expressions have the effect of the mappings.
func TestAMappingFromAnExpressionHasItsEntries(t *testing.T) {
	tr := newTrial(t)
	tr.file("show/action.yml", `
inputs: {a: {}, b: {default: own}}
runs:
  using: composite
  steps:
    - run: echo "input ${{ inputs.a }} ${{ inputs.b }}, $STEP"
      shell: sh
      env: ${{ fromJSON('{"STEP":7}') }}
`)
	o := tr.text(`
on: push
env: ${{ fromJSON('{"TOP":"top","SAME":"top"}') }}
defaults: {run: {shell: bash}}
jobs:
  a:
    env: ${{ fromJSON('{"SAME":"job","N":1.50,"ON":true,"NONE":null}') }}
    strategy: ${{ fromJSON('{"matrix":{}}') }}
    environment: ${{ fromJSON('{"name":"x"}') }}
    defaults:
      run: ${{ fromJSON('{"working-directory":"show"}') }}
    steps:
      - run: 'echo "run $TOP $SAME $N $ON [$NONE] $OWN ${BASH_VERSION:+bash} $(basename "$PWD")"'
        env: ${{ fromJSON('{"OWN":"step"}') }}
      - uses: ./show
        with: ${{ fromJSON(format('{{"a":"{0}"}}', env.SAME)) }}
      - uses: ./show
        with: ${{ null }}
`).run()
	require.Equal(t, engine.Success, o.Status, "%s %s", o.Message, tr.log)
	require.Contains(t, tr.log.String(), "run top job 1.5 true [] step bash show\n")
	require.Contains(t, tr.log.String(), "input job own, 7\n")
	require.Contains(t, tr.log.String(), "input  own, 7\n")

	for value, want := range map[string]string{
		`'text'`:                           "env must be a mapping, and the value of its expression is of the kind String",
		`fromJSON('[1]')`:                  "env must be a mapping, and the value of its expression is of the kind Array",
		`fromJSON('{"A":[1]}')`:            `its expression is not: "A" is of the kind Array`,
		`fromJSON('{"":1}')`:               `env must be a mapping of texts, and the value of its expression is not: ""`,
		`fromJSON('{"A":{"B":"secret"}}')`: `"A" is of the kind Object`,
	} {
		tr := newTrial(t)
		o := tr.workflow("- run: 'true'\n  env: ${{ " + value + " }}\n").run()
		require.Contains(t, o.Message, want)
		require.NotContains(t, o.Message, "secret")
	}
}

func TestContainersFromExpressionsAreDescribed(t *testing.T) {
	text := `
jobs:
  a:
    container: ${{ fromJSON(matrix.box) }}
    services: ${{ fromJSON(matrix.services) }}
    steps: [{run: x}]
  b:
    container: {image: x, env: "${{ fromJSON('{\"A\":1}') }}"}
    services:
      db: ${{ fromJSON(matrix.box) }}
      off: ${{ null }}
    steps: [{run: x}]
`
	matrix := map[string]any{
		"box":      `{"image":"docker://node:24","env":{"LEVEL":2},"options":"--cpus 1"}`,
		"services": `{"db":"postgres:17","cache":{"image":"redis","env":{"A":"b"},"ports":[6379]},"off":{"image":""}}`,
	}
	j, err := ReadJob("w.yml", []byte(text), "a")
	require.NoError(t, err)
	made, err := j.Container(matrix, nil, nil, nil)
	require.NoError(t, err)
	require.YAMLEq(t, `{image: {name: "node:24"}, services: [
		{name: "postgres:17", alias: db, variables: {}}, {name: redis, alias: cache, variables: {A: b}}]}`, string(made.Text))
	require.Equal(t, map[string]string{"LEVEL": "2"}, made.Env)
	require.Equal(t, map[string]any{"ports": map[string]string{"6379": "6379"}}, made.Services["cache"])
	var notes strings.Builder
	require.NoError(t, j.writeNotes(&notes, true, false))
	require.Contains(t, notes.String(), "note: w.yml:5: the services are not started: --in-image")

	j, err = ReadJob("w.yml", []byte(text), "b")
	require.NoError(t, err)
	made, err = j.Container(matrix, nil, nil, nil)
	require.NoError(t, err)
	require.YAMLEq(t, `{image: {name: x}, services: [{name: "node:24", alias: db, variables: {LEVEL: "2"}}]}`,
		string(made.Text))
	require.Equal(t, map[string]string{"A": "1"}, made.Env)

	for services, want := range map[string]string{
		`[1]`:                            "w.yml:5: services must be a mapping, and the value",
		`"a"`:                            "its expression is of the kind String",
		`{"db":["a"]}`:                   "w.yml:5: db must be an image or a mapping, and the value",
		`{"db":{"image":"a","env":"b"}}`: "w.yml:5: db: env must be a mapping, and the value",
		`{`:                              "w.yml:5: services: Error parsing fromJson",
	} {
		matrix["services"] = services
		j, err := ReadJob("w.yml", []byte(text), "a")
		require.NoError(t, err)
		_, err = j.Container(matrix, nil, nil, nil)
		require.ErrorContains(t, err, want)
	}
	_, err = ReadJob("w.yml", []byte(strings.Replace(text, "fromJSON(matrix.services)", "nope.x", 1)), "a")
	require.ErrorContains(t, err, "w.yml:5: services: Unrecognized named-value: 'nope'")
}
