package action

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/lang"
)

const withInputs = `on:
  push: {branches: [main]}
  workflow_dispatch:
    inputs:
      level: {type: choice, options: [info, debug], default: info}
      dry: {type: boolean, default: true}
      count: {type: number, default: 3}
      name: {required: true}
  workflow_call: {inputs: {level: {type: string, default: other}, more: {type: boolean}}}
`

func TestInputsOfAWorkflowHaveTheirTypes(t *testing.T) {
	bind := func(on string, given map[string]string) (map[string]any, []string, error) {
		j, err := ReadJob("w.yml", []byte(on+"jobs: {a: {steps: [{run: x}]}}\n"), "")
		require.NoError(t, err)
		return j.Inputs(given)
	}
	got, notes, err := bind(withInputs, map[string]string{
		"level": "debug", "dry": "false", "count": "1.5", "more": "true",
		"name": "${{ x }}",
	})
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, map[string]any{"level": "debug", "dry": false, "count": 1.5, "more": true, "name": "${{ x }}"}, got)
	got, notes, err = bind(withInputs, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"w.yml:8: the input name is required, and has no value: give it with --input"}, notes)
	require.Equal(t, map[string]any{"level": "info", "dry": true, "count": 3.0, "more": false, "name": ""}, got)
	for name, want := range map[string]string{
		"level": `w.yml:5: the input "level": "maybe" is not one of its options: info, debug`,
		"dry":   `w.yml:6: the input "dry": "maybe" is neither true nor false`,
		"count": `w.yml:7: the input "count": "maybe" is not a number`,
		"other": `w.yml: the workflow has no input "other" in on.workflow_dispatch or on.workflow_call`,
	} {
		_, _, err := bind(withInputs, map[string]string{name: "maybe"})
		require.EqualError(t, err, want)
	}
	_, err = ReadJob("w.yml", []byte("on: {workflow_call: {inputs: [x]}}\n"), "")
	require.EqualError(t, err, "w.yml:1:30: inputs must be a mapping (key: value), not a list")
	for _, on := range []string{
		"push", "[push, workflow_dispatch]", "{workflow_dispatch: }", "{workflow_dispatch: {inputs: }}",
	} {
		got, notes, err := bind("on: "+on+"\n", nil)
		require.NoError(t, err)
		require.Empty(t, notes)
		require.Empty(t, got)
	}
}

func TestJobOfAWorkflowReadsItsInputs(t *testing.T) {
	tr := newTrial(t)
	job, err := json.Marshal([]any{map[string]any{"name": "job", "step": "builtin://github/job", "inputs": map[string]any{
		"inputs": map[string]any{"dry": false, "level": "debug"},
		"workflow": lang.Escape(`jobs:
  test:
    steps:
      - if: "!inputs.dry && !inputs.other"
        run: echo '${{ inputs.level }}'
`),
	}}})
	require.NoError(t, err)
	tr.steps(string(job)).succeed()
	require.Equal(t, "debug\n", tr.log.String())
	j, err := ReadJob("w.yml", []byte("jobs: {a: {container: 'x:${{ inputs.level }}', steps: [{run: x}]}}"), "")
	require.NoError(t, err)
	box, err := j.Container(nil, map[string]any{"level": "debug"}, nil, nil)
	require.NoError(t, err)
	require.YAMLEq(t, "{image: {name: 'x:debug'}}", string(box.Text))
}
