package lang

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

func value(t *testing.T, x any) expr.Value {
	t.Helper()
	v, err := expr.New(x)
	require.NoError(t, err)
	return v
}

func TestInputsTakeValuesOfTheirTypeOnly(t *testing.T) {
	all := map[pb.Spec_InputType]any{
		pb.Spec_string: "text", pb.Spec_number: 1.5, pb.Spec_bool: true,
		pb.Spec_struct: map[string]any{"a": 1}, pb.Spec_list: []any{"a"},
	}
	for want := range all {
		for have, x := range all {
			_, err := accept(&pb.Spec_Input{Type: want}, value(t, x), new(int))
			require.Equal(t, want == have, err == nil, "%v for %v: %v", have, want, err)
		}
		_, err := accept(&pb.Spec_Input{Type: want}, value(t, nil), new(int))
		require.ErrorContains(t, err, "the value is null, and must be")
	}
	_, err := accept(&pb.Spec_Input{Type: pb.Spec_struct}, value(t, []any{"geheim"}), new(int))
	require.EqualError(t, err, "the value is an array, and must be a struct")
}

// Inputs of the blueprint have no types: a YAML number becomes its text.
func TestUntypedInputsTakeScalarsAsText(t *testing.T) {
	for want, x := range map[string]any{"3.1": 3.1, "true": true, "x": "x"} {
		got, err := accept(&pb.Spec_Input{}, value(t, x), new(int))
		require.NoError(t, err)
		require.Equal(t, value(t, want), got)
	}
	for _, x := range []any{nil, []any{}, map[string]any{}} {
		_, err := accept(&pb.Spec_Input{}, value(t, x), new(int))
		require.ErrorContains(t, err, "and must be a text")
	}
	got, err := accept(&pb.Spec_Input{Sensitive: true}, value(t, 7).MarkSensitive(), new(int))
	require.NoError(t, err)
	require.True(t, got.Sensitive())
}

func TestInputsRestrictTheirValues(t *testing.T) {
	in := &pb.Spec_Input{Options: []string{"a", "b"}, Match: "^[ab]$"}
	_, err := accept(in, value(t, "a"), new(int))
	require.NoError(t, err)
	_, err = accept(in, value(t, "geheim"), new(int))
	require.EqualError(t, err, "the value is not one of a, b")
	_, err = accept(&pb.Spec_Input{Match: "^v[0-9]$"}, value(t, "geheim"), new(int))
	require.EqualError(t, err, "the value does not match ^v[0-9]$")
}

func TestSensitiveValuesEnterSensitiveInputsOnly(t *testing.T) {
	secret := value(t, "geheim").MarkSensitive()
	_, err := accept(&pb.Spec_Input{Type: pb.Spec_string}, secret, new(int))
	require.EqualError(t, err, "the value is sensitive, and the input is not; declare it with sensitive: true")
	got, err := accept(&pb.Spec_Input{Type: pb.Spec_string, Sensitive: true}, value(t, "plain"), new(int))
	require.NoError(t, err)
	require.True(t, got.Sensitive())
	_, err = accept(&pb.Spec_Input{Type: pb.Spec_struct}, value(t, map[string]any{"a": secret}), new(int))
	require.ErrorContains(t, err, "the value is sensitive")
}

func TestCallsAreCheckedAsFarAsTheyAreKnown(t *testing.T) {
	def, err := ParseStep("step.yml", []byte(`
spec:
  inputs:
    message: {type: string}
    count: {type: number, default: 1}
    list: {type: array, default: []}
---
exec: {command: [echo]}
`))
	require.NoError(t, err)
	for want, inputs := range map[string]map[string]any{
		``: {"message": "x", "count": 2},
		`the input "message" is required, and not given`:              {"count": 2},
		`the step takes no input "mesage", did you mean "message"?`:   {"mesage": "x"},
		`the step takes no input "other"; it takes count, list, mess`: {"message": "x", "other": "x"},
		`input "count": the value is a string, and must be a number`:  {"message": "x", "count": "1"},
		`input "list": the value is a struct, and must be an array`:   {"message": "x", "list": map[string]any{}},
	} {
		given, err := structpb.NewStruct(inputs)
		require.NoError(t, err)
		err = CheckCall(def.GetSpec(), given.GetFields())
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	for _, inputs := range []map[string]any{
		{"message": "x", "count": "${{ vars.N }}"},
		{"message": "x", "list": []any{"${{ vars.N }}"}},
		{"${{ vars.NAME }}": "x"},
	} {
		given, err := structpb.NewStruct(inputs)
		require.NoError(t, err)
		require.NoError(t, CheckCall(def.GetSpec(), given.GetFields()), "%v", inputs)
	}
}

func TestBuiltinStepsTakeAScript(t *testing.T) {
	_, err := Builtin("other")
	require.EqualError(t, err, `there is no step "other" built in; there are artifacts/download, artifacts/upload, `+
		`cache/restore, cache/save, git/clone, github/job, legacy/script, script, script_legacy`)
	for text, want := range map[string]string{
		"- {step: builtin://script, inputs: {script: x}}":                "x",
		"- {step: dist://script, inputs: {script: x, shell: sh}}":        "x",
		"- {step: builtin://legacy/script, inputs: {script: [a, b, c]}}": "a\nb\nc",
		"- {script: x, inputs: {shell: bash}}":                           "x",
	} {
		def, err := Parse("j", []byte(text))
		require.NoError(t, err)
		s := def.GetSteps()[0]
		require.Equal(t, want, scriptOf(s))
		called, err := Builtin(s.GetReference().GetPath())
		require.NoError(t, err)
		require.NoError(t, CheckCall(called.GetSpec(), s.GetInputs()))
	}
	_, err = Parse("j", []byte("- {step: builtin://script, inputs: {script: [a, 1]}}"))
	require.ErrorContains(t, err, "every line of the script must be a text")
}

func TestBuiltinStepsMatchTheirFiles(t *testing.T) {
	for name := range builtins {
		def, err := Builtin(name)
		require.NoError(t, err)
		require.Equal(t, pb.DefinitionType_exec, def.GetType())
		if name == ScriptStep || name == LegacyScriptStep {
			continue
		}
		require.NotEmpty(t, def.GetExec().GetCommand(), name)
		for input, in := range def.GetSpec().GetSpec().GetInputs() {
			require.NotEmpty(t, in.GetDescription(), "%s: %s", name, input)
			require.Equal(t, input == "token" || input == inputScript, in.GetSensitive(), "%s: %s", name, input)
		}
	}
	for name, want := range map[string]string{
		"concrete":             "builtin://concrete is not part of this version: the step has a whole job",
		"function/oci/build":   "builtin://function/oci/build is not part of this version: build the image with another tool",
		"function/oci/publish": "builtin://function/oci/publish is not part of this version: publish the image",
	} {
		_, err := Builtin(name)
		require.ErrorContains(t, err, want)
	}
}

// Symptom: an output without a type that was written as a number stayed one, so that "v" + it was an error.
func TestUntypedOutputsAreTexts(t *testing.T) {
	outputs := map[string]*pb.Spec_Output{"n": {}, "d": {Default: structpb.NewNumberValue(3.1)}}
	got, _, err := BindOutputs(&pb.Spec{Spec: &pb.Spec_Content{Outputs: outputs}}, pb.Definition_v0,
		map[string]expr.Value{"n": value(t, 7).MarkMasked()})
	require.NoError(t, err)
	require.Equal(t, map[string]expr.Value{"n": value(t, "7").MarkMasked(), "d": value(t, "3.1")}, got)
}

// Symptom: the default of the input i is, and not one of its options.
func TestDefaultThatIsANumberIsComparedWithTheOptionsAsText(t *testing.T) {
	const step = "spec: {inputs: {i: {default: 3, options: ['%s']}}}\n---\ntype: exec\nexec: {command: [a]}\n"
	_, err := ParseStep("step.yml", fmt.Appendf(nil, step, "3"))
	require.NoError(t, err)
	_, err = ParseStep("step.yml", fmt.Appendf(nil, step, "4"))
	require.ErrorContains(t, err, `the default of the input "i" is "3", and not one of its options`)
}

// Symptom: True was not found.
func TestConditionMayBeABooleanInAllSpellingsOfYAML(t *testing.T) {
	for text, want := range map[string]string{"True": "true", "FALSE": "false", "true": "true"} {
		def, err := Parse("j", []byte("- {script: x, if: "+text+"}"))
		require.NoError(t, err)
		require.Equal(t, want, def.GetSteps()[0].GetCondition())
	}
}

// Symptom: a value of 4 MiB, and a match as (x?){1000}y, took the step runner eight minutes, in which a job could not
// be stopped. A step may have many such inputs.
func TestTimeForAMatchIsBounded(t *testing.T) {
	for match, most := range map[string]int{"(x?){1000}y": 1 << 10, "^x*$": 256 << 10} {
		in := &pb.Spec_Input{Type: pb.Spec_string, Match: match}
		_, err := accept(in, value(t, strings.Repeat("x", most)+"y"), new(int))
		require.NotContains(t, fmt.Sprint(err), "too long", match)
		_, err = accept(in, value(t, strings.Repeat("x", 4<<20)), new(int))
		require.EqualError(t, err, "match "+tooLong)
	}
}

const tooLong = "takes too long for this value, or for those of all inputs together; pass long values in files"

// Symptom: each match of a step could take half a second, so those of a step with 2,000 inputs took a quarter of an
// hour, in which the job could not be stopped.
func TestTimeForAllMatchesOfASpecIsBounded(t *testing.T) {
	racefree.Only(t)
	spec := func(n int, match string, preset *structpb.Value) *pb.Spec {
		content := &pb.Spec_Content{Inputs: map[string]*pb.Spec_Input{}}
		for i := range n {
			content.Inputs[fmt.Sprintf("i%02d", i)] = &pb.Spec_Input{Type: pb.Spec_string, Match: match, Default: preset}
		}
		return &pb.Spec{Spec: content}
	}
	const match = "^(x?){900}$"
	given, literal := map[string]expr.Value{}, map[string]*structpb.Value{}
	text := strings.Repeat("x", 700)
	for i := range 10 {
		name := fmt.Sprintf("i%02d", i)
		given[name], literal[name] = value(t, text), structpb.NewStringValue(text)
	}
	_, err := Bind(spec(10, match, nil), given)
	require.ErrorContains(t, err, `: match `+tooLong)
	_, err = Bind(spec(10, match, structpb.NewStringValue(text)), nil)
	require.ErrorContains(t, err, `: match `+tooLong)
	require.ErrorContains(t, CheckCall(spec(10, match, nil), literal), `: match `+tooLong)
	_, err = Bind(spec(1, match, structpb.NewStringValue(text)), nil)
	require.NoError(t, err)

	var b strings.Builder
	for i := range 10 {
		fmt.Fprintf(&b, "    i%d: {type: string, match: '(%s){1000}'}\n", i, strings.Repeat("x", 600))
	}
	_, err = ParseStep("step.yml", []byte("spec:\n  inputs:\n"+b.String()+"---\ntype: exec\nexec: {command: [x]}\n"))
	require.ErrorContains(t, err, "match of the input \"i6\" "+tooLong)
}
