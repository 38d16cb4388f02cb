package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestStepThatMayFailDoesNotFailTheJob(t *testing.T) {
	tr := newTrial(t, `run:
  - {name: a, script: exit 3}
  - {name: b, script: "echo ${{ steps.a.status }}"}
  - {name: c, script: echo no, when: on_failure}
  - {name: d, run: [{name: a, script: exit 4}]}
`, func(c *Config) { c.MayFail = []string{"a"} })
	res := tr.fail(`step "d": step "a": exec: exit status 4`)
	require.Equal(t, 4, res.ExitCode, "of a step within another it is no matter what its name is")
	require.Equal(t, "failure\n", tr.stdout.String())
	require.Equal(t, []string{"a failure", "b success", "c skipped", "d failure"}, statuses(res.Steps))
}

func TestInputsOfAJobAreGivenByItsCaller(t *testing.T) {
	const text = `spec: {inputs: {who: {type: string}, n: {type: number, default: 2}}}
---
run:
  - {name: a, exec: {command: [echo, "${{ inputs.who }} ${{ inputs.n }}"]}}
`
	_, err := lang.Parse("job.yml", []byte(text))
	require.ErrorContains(t, err, `the input "who" is required, and a job is given none`)
	def, err := lang.ParseCalled("job.yml", []byte(text))
	require.NoError(t, err)
	given, err := expr.New("you ${{ x }}")
	require.NoError(t, err)
	tr := newTrial(t, "- script: echo", func(c *Config) {
		c.Definition, c.Inputs = def, map[string]expr.Value{"who": given}
	})
	tr.succeed()
	require.Equal(t, "you ${{ x }} 2\n", tr.stdout.String())

	tr = newTrial(t, "- script: echo", func(c *Config) { c.Definition = def })
	require.True(t, tr.fail(`the input "who" is required, and not given`).Invalid)
}
