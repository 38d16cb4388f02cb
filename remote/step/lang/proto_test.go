package lang

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func TestFromProtoCompilesLikeTheSameYAML(t *testing.T) {
	fromProto, err := FromProto([]*pb.Step{
		{Name: "a", Script: `echo \${{ x }}`, Env: map[string]string{"K": "v", "L": ""}},
		{Exec: &pb.Exec{Command: []string{"make", ""}, WorkDir: "src"}},
	})
	require.NoError(t, err)
	fromYAML, err := Parse("j", []byte(`
- {name: a, script: 'echo \${{ x }}', env: {K: v, L: ""}}
- {exec: {command: [make, ""], work_dir: src}}
`))
	require.NoError(t, err)
	requireDefinition(t, fromYAML, fromProto)
}

func TestFromProtoNamesTheField(t *testing.T) {
	ok := &pb.Step{Name: "ok", Script: "x"}
	for want, list := range map[string][]*pb.Step{
		"steps: there are no steps; write at least one, such as - script: echo hello":       nil,
		"steps[0]: the step has nothing to run; give it a script, a step, an exec or a run": {nil},
		"steps[1].name: the name \"a b\" is not valid; use letters, digits and _, not a digit first, at most 256 in all": {
			ok,
			{Name: "a b", Script: "x"},
		},
		"steps[1].name: the name \"ok\" is taken by step 1; the names of a list's steps must differ": {
			ok,
			ok,
		},
		"steps[0].env: the variable name \"a b\" is not valid; use letters, digits and _, not a digit first": {{
			Script: "x",
			Env:    map[string]string{"a b": "geheim"},
		}},
		"steps[0].exec: the step has both script and exec; a step has one of them": {{
			Script: "x",
			Exec:   &pb.Exec{Command: []string{"a"}},
		}},
		"steps[0].exec.command: command is empty; write the program and its arguments, such as [make, test]": {{
			Exec: &pb.Exec{},
		}},
		"steps[0].exec.command[0]: the program is empty; write its name or path": {{
			Exec: &pb.Exec{Command: []string{""}},
		}},
		"steps[0].exec.command[1]: the text holds a NUL byte, which no program can be given": {{
			Exec: &pb.Exec{Command: []string{"a", "\x00"}},
		}},
		`steps[0].step: the reference is invalid; a step of the project is written with ./ before it, one of a repository ` +
			`as host/path@revision`: {{Step: "x"}},
		"steps[0].inputs: script takes no inputs but shell; pass values in env": {{
			Script: "x",
			Inputs: map[string]*structpb.Value{"a": structpb.NewNullValue()},
		}},
		"steps[0].script: script is empty; write the commands for the shell": {{Script: "\n"}},
		`steps[0].script: step "step_1": script: geheim was not found; there are env, export_file, func_dir, inputs, job, ` +
			`output_file, step_dir, steps, vars, work_dir`: {{Script: "echo ${{ geheim }}"}},
		`steps[0].exec.work_dir: step "step_1": work_dir: the expression ${{ is not closed; write }} at its end, or \${{ ` +
			`for the text itself`: {{Exec: &pb.Exec{Command: []string{"a"}, WorkDir: "${{ geheim"}}},
		"steps: 10001 steps are too many, at most 10000 are allowed": make([]*pb.Step, MaxSteps+1),
	} {
		_, err := FromProto(list)
		require.EqualError(t, err, want)
	}
}

func TestScriptIsTakenAsItStands(t *testing.T) {
	text := "echo ${{ x }} \\${{\n" + strings.Repeat("# long\n", MaxText/4)
	def, err := Script("ci_script", text)
	require.NoError(t, err)
	want := job(script("script", ""))
	want.Steps[0].Inputs["script"] = structpb.NewStringValue(Escape(text))
	requireDefinition(t, want, def)
	got, literal := Literal(scriptOf(def.GetSteps()[0]))
	require.True(t, literal)
	require.Equal(t, text, got)

	_, err = Script("ci_script", " \n")
	require.EqualError(t, err, "ci_script: the script is empty; write the commands for the shell")
	_, err = Script("ci_script", "echo \x00")
	require.EqualError(t, err, "ci_script: the script holds a NUL byte, which no shell can read")
}

func TestCheckEnvNamesTheVariableAndNotItsValue(t *testing.T) {
	require.NoError(t, CheckEnv("env", nil))
	require.NoError(t, CheckEnv("env", map[string]string{"_a1": "${{ x }}\nb", "B": ""}))
	for want, env := range map[string]map[string]string{
		`env: the variable name "a b" is not valid; use letters, digits and _, not a digit first (env must be ` +
			`alphanumeric with underscores)`: {"a b": "geheim"},
		`env: the variable name is not valid; use letters, digits and _, not a digit first (env must be alphanumeric with ` +
			`underscores)`: {"": "geheim"},
		`env["A"]: the value holds a NUL byte, which no program can be given`: {"A": "geheim\x00"},
		`env["A"]: the variable has 131074 bytes, at most 131071 can be passed; put it into a file`: {"A": strings.Repeat("x",
			MaxArg+1)},
	} {
		require.EqualError(t, CheckEnv("env", env), want)
	}
	// Keys that are line noise are not repeated.
	require.EqualError(t, CheckEnv("env", map[string]string{"x=\x1b[31m": ""}),
		"env: the variable name is not valid; use letters, digits and _, not a digit first (env must be alphanumeric with "+
			"underscores)")
	many := map[string]string{}
	for i := range 20 {
		many[strings.Repeat("a", i+1)] = strings.Repeat("x", 60<<10)
	}
	require.EqualError(t, CheckEnv("env", many),
		"env: the variables have more than 1048576 bytes in all; put some into files")
}

// Symptom: the same request failed with another error each time.
func TestOfSeveralMistakesInAMapTheFirstByNameIsReported(t *testing.T) {
	env, fields := map[string]string{}, map[string]*structpb.Value{}
	for c := 'a'; c <= 'z'; c++ {
		env[string(c)], fields[string(c)] = "\x00", structpb.NewStringValue("${{ "+string(c)+" }}")
	}
	require.ErrorContains(t, CheckEnv("env", env), `env["a"]: `)
	_, err := FromProto([]*pb.Step{{
		Step: "./a", Inputs: map[string]*structpb.Value{"i": structpb.NewStructValue(&structpb.Struct{Fields: fields})},
	}})
	require.ErrorContains(t, err, ": a was not found")
	_, err = Resolve(&pb.Reference{Form: pb.Reference_git, Url: "u", Rev: "r", Path: "d", File: "f"},
		func(template string) (string, error) { return "", errors.New("evaluate " + template) })
	require.EqualError(t, err, "evaluate d")
}
