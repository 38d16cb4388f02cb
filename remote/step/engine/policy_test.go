package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// exporting is a job whose first step exports variables that change later programs, and two that do not.
const exporting = `
- name: a
  script: |
    for name in LD_PRELOAD BASH_ENV ENV NODE_OPTIONS; do
      echo '{"name":"'$name'","value":"/nowhere"}' >> ${{ export_file }}
    done
- {name: b, exec: {command: [env]}, env: {PATH: "${{ env.PATH }}"}}
`

//stepmux:faults engine | A step exports LD_PRELOAD or BASH_ENV to all later steps, or its job fails for an export of
//stepmux:more ENV
//stepmux:with remote/step/engine.TestUnsafeExportsCanBeRefusedOrAllowed
func TestUnsafeExportsAreDroppedWithAWarning(t *testing.T) {
	tr := newTrial(t, exporting)
	res := tr.succeed()
	require.Contains(t, tr.stdout.String(), "ENV=/nowhere\n")
	require.Contains(t, tr.stdout.String(), "NODE_OPTIONS=/nowhere\n")
	require.NotContains(t, tr.stdout.String(), "LD_PRELOAD")
	require.NotContains(t, tr.stdout.String(), "BASH_ENV")
	require.NotContains(t, res.Exports, "LD_PRELOAD")
	require.Equal(t, []string{
		"the export BASH_ENV was dropped: it changes what every later program does; set it in env where it is needed",
		"the export LD_PRELOAD was dropped: it changes what every later program does; set it in env where it is needed",
	}, res.Steps[0].Warnings)
}

func TestUnsafeExportsCanBeRefusedOrAllowed(t *testing.T) {
	res := newTrial(t, exporting, func(c *Config) { c.Policy.UnsafeExports = "refuse" }).run()
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, `export "BASH_ENV": this variable changes what every later program does`)
	require.Contains(t, res.Message, `export "LD_PRELOAD": this variable changes`)

	tr := newTrial(t, exporting, func(c *Config) { c.Policy.UnsafeExports = "allow" })
	require.Empty(t, tr.succeed().Steps[0].Warnings)
	require.Contains(t, tr.stdout.String(), "LD_PRELOAD=/nowhere\n")
}

func TestPoliciesOfUnsafeExportsHaveNames(t *testing.T) {
	for _, name := range append(unsafePolicies, "") {
		require.NoError(t, Policy{UnsafeExports: name}.Check())
	}
	err := Policy{UnsafeExports: "ignore"}.Check()
	require.EqualError(t, err, `unsafe-exports: "ignore" is not known; use drop, refuse or allow`)
}

func TestRunnersEnvironmentPassesAsTheOperatorSays(t *testing.T) {
	environment := []string{
		"PATH=/bin", "HOME=/home/ci", "http_proxy=http://user:password@proxy", "GOPATH=/go", "JAVA_HOME=/java",
		"MONKEY=ape", "KEYBOARD=us", "PWD=/here", "DOCS_URL=https://example.com/a@b",
		"CI_JOB_TOKEN=x", "NPM_AUTH=x", "AWS_SECRET_ACCESS_KEY=x", "MYSQL_PWD=x", "gitlabtoken=x", "db_password=x",
		"SSH_AUTH_SOCK=/x", "DATABASE_URL=postgres://user:pa55@db/x", "BROKEN_URL=amqp://u:%zz@host",
		"BASH_FUNC_x%%=() { :; }",
	}
	basic := []string{"HOME", "PATH", "http_proxy"}
	all := append([]string{"DOCS_URL", "GOPATH", "JAVA_HOME", "KEYBOARD", "MONKEY", "PWD"}, basic...)
	for _, c := range []struct{ flag, want []string }{
		{nil, basic},
		{[]string{"GOPATH", "CI_JOB_TOKEN", "MISSING"}, append([]string{"GOPATH", "CI_JOB_TOKEN"}, basic...)},
		{[]string{"all"}, all},
		{[]string{"all", "SSH_AUTH_SOCK"}, append([]string{"SSH_AUTH_SOCK"}, all...)},
		{[]string{"none"}, []string{"PATH"}},
		{[]string{"GOPATH", "none"}, []string{"GOPATH", "PATH"}},
	} {
		pass, _, err := Passing(c.flag...).parse()
		require.NoError(t, err)
		var names []string
		for name := range osLayer(environment, pass) {
			names = append(names, name)
		}
		slices.Sort(c.want)
		slices.Sort(names)
		require.Equal(t, c.want, names, "%v", c.flag)
	}
	for flag, want := range map[string]string{
		"A-B": `the variable name "A-B" is not valid; write the name of a variable, all or none`,
		"":    "the variable name is not valid; write the name of a variable, all or none",
	} {
		require.EqualError(t, Passing(flag).Check(), "pass-env: "+want)
	}
	both := Passing("all", "none")
	require.EqualError(t, both.Check(), "pass-env: all and none exclude each other")
	pass, unsafe, _ := both.parse()
	require.Equal(t, passing{base: passNone}, pass, "a policy that is not valid passes nothing")
	require.Equal(t, refuseUnsafe, unsafe)
	require.Equal(t, Policy{PassEnv: []string{"A"}, UnsafeExports: "allow"},
		Policy{PassEnv: []string{"B"}, UnsafeExports: "allow"}.Under(Passing("A")))
}

func TestNewerKeysInTheFileOfAStepAreWarningsOfItsCallers(t *testing.T) {
	files := map[string]string{"a/step.yml": "spec: {inputs: {v: {type: string, default: x, since: 20}}}\n---\n" +
		"exec: {command: [echo, '${{ inputs.v }}']}\nsandbox: yes\n"}
	tolerant := func(c *Config) { c.Tolerant = true }
	tr := newTrial(t, "- {name: a, step: ./a}\n- {name: b, step: ./a}\n", tolerant).files(files)
	res := tr.succeed()
	for _, step := range res.Steps {
		require.Len(t, step.Warnings, 2)
		require.Contains(t, step.Warnings[0], `a/step.yml:1:47: unknown key "since"`)
		require.Contains(t, step.Warnings[1], `a/step.yml:4:1: unknown key "sandbox"`)
		require.Contains(t, step.Warnings[1], "; it is ignored")
	}
	res = newTrial(t, "- {name: a, step: ./a}\n").files(files).run()
	require.True(t, res.Invalid)
	require.Contains(t, res.Message, `unknown key "since"`)
}
