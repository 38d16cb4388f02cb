package recording

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestInputThatAMaskedVariableMadeASecretIsInNoTrace(t *testing.T) {
	// The first value is too short to be found in a text: only the value itself knows that it is a secret.
	tr := newTrial(t, `
- {name: a, step: ./a, inputs: {pin: "${{ vars.PIN }}", all: {k: "x ${{ vars.PW }}"}}}
`, traced(), func(c *engine.Config) {
		c.Vars = []engine.Variable{{Key: "PIN", Value: "q7", Masked: true}, {Key: "PW", Value: "geheim", Masked: true}}
	}).files(map[string]string{"a/step.yml": `
spec: {inputs: {pin: {type: string}, all: {type: struct}}}
---
env: {PIN: "${{ inputs.pin }}"}
exec: {command: ["true", "${{ inputs.pin }}", "${{ inputs.all.k }}"]}
`})
	made := tr.Trace(tr.succeed(), time.Now(), time.Now())
	step := made.Identity.Steps[0]
	require.True(t, step.Inputs["pin"].Masked)
	require.True(t, step.Inputs["all"].Masked)
	require.True(t, step.EnvSet["PIN"].Masked)
	require.True(t, step.Exec.Argv[1].Masked)
	require.True(t, step.Exec.Argv[2].Masked)
	data, err := made.Encode()
	require.NoError(t, err)
	require.NotContains(t, string(data), "geheim")
	require.NotContains(t, string(data), `"q7"`)
}
