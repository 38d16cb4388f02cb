package lang

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/yamltree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"

	"github.com/stepmux/stepmux/internal/testing/racefree"
)

// allForms has all that a job can hold.
const allForms = `spec:
  inputs:
    who: {type: string, default: 'a \${{ b', description: who it is, sensitive: true}
    many: {type: array, default: [1, {a: b}]}
  outputs:
    said: {type: string, default: none}
    count: {type: number, sensitive: true}
---
env: {"${{ vars.NAME }}": "x", A: 'b \${{'}
run:
  - name: short
    script: 'echo ${{ inputs.who }} >> ${{ output_file }}'
    inputs: {shell: sh}
    when: always
  - name: second
    script: echo
    timeout: 1h30m
    if: ${{ steps.short.status == "success" }}
  - {name: long, step: "builtin://script", inputs: {script: [a, b]}}
  - {name: legacy, step: "builtin://legacy/script", inputs: {script: a}}
  - {name: here, step: ./dir/x.yml, inputs: {a: [1, "${{ inputs.who }}"]}, env: {B: c}}
  - {name: open, step: gitlab.com/a/b/c/d@main}
  - {name: dynamic, step: '${{ vars.WHERE }}'}
  - {name: git, step: {git: {url: "https://h/p", rev: v1, dir: a/b, file: x.yml}}}
  - {name: late, step: {git: {url: "${{ vars.URL }}", rev: v1}}}
  - {name: zip, step: {zip: {url: ./steps.zip, sha256: "0a1b"}}}
  - {name: oci, step: {oci: {registry: h, repository: 'r', tag: v1, dir: d}}}
  - {name: act, action: owner/repo@v1}
  - {name: go, exec: {command: [go, test], work_dir: sub, timeout: 1500ms}}
  - name: list
    run:
      - {name: inner, script: echo}
      - {name: other, run: [{name: deep, script: deep}]}
outputs: {said: "${{ steps.short.status }}", count: 3}
`

// roundTrip formats def, which verifies that the text compiles to def.
func roundTrip(def *pb.Definition) error {
	_, err := Format(def)
	return err
}

func TestDefinitionsHaveATextThatCompilesToThem(t *testing.T) {
	texts := []string{
		allForms,
		"- script: echo\n",
		"exec: {command: [a, b]}\nenv: {A: b}\n",
		"spec: {outputs: {o: {type: string}}}\n---\nexec: {command: [a, '${{ output_file }}']}\n",
		"spec: {outputs: delegate}\n---\nrun:\n- {name: a, step: ./a}\ndelegate: a\n",
		"spec: {inputs: {n: {type: number}}, requests: {env: [A], vars: [B]}}\n---\ntype: exec\nexec: {command: [a]}\n",
		"spec: {inputs: {i: {type: string, default: a, options: [a, b]}, j: {type: string, default: a, match: '^a'}}}\n" +
			"---\ntype: steps\nsteps:\n- {step: ./a}\n- {script: b}\n",
	}
	examples, err := filepath.Glob("../../../examples/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, file := range examples {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		texts = append(texts, string(data))
	}
	compiled := 0
	for _, text := range texts {
		def, err := ParseCalled("steps", []byte(text))
		if err != nil {
			require.NotEqual(t, allForms, text, "%v", err)
			continue // an example may be a .gitlab-ci.yml
		}
		compiled++
		before := proto.CloneOf(def)
		require.NoError(t, roundTrip(def), "%s", text)
		require.True(t, proto.Equal(before, def))
		data, err := protojson.Marshal(def)
		require.NoError(t, err)
		back := &pb.Definition{}
		require.NoError(t, protojson.Unmarshal(data, back))
		require.NoError(t, roundTrip(back), "%s", text)
	}
	require.Greater(t, compiled, len(examples))
	def, err := Script("script", "echo ${{ not an expression")
	require.NoError(t, err)
	require.NoError(t, roundTrip(def))
}

func TestKeptTextHasALimitOfItsOwn(t *testing.T) {
	racefree.Only(t)
	const script = "- script: echo\n"
	def, err := ParseKept("j", script+strings.Repeat("#", maxKept-len(script)))
	require.NoError(t, err)
	_, err = ParseKept("j", script+strings.Repeat("#", maxKept-len(script)+1))
	require.EqualError(t, err, "j: the text has more than 16 MiB; move scripts into files")
	def.Steps[0].Inputs[inputScript] = structpb.NewStringValue(strings.Repeat("x", maxKept))
	require.ErrorContains(t, roundTrip(def), "more than 16 MiB")
}

func TestADefinitionThatNoTextBecomesIsRefused(t *testing.T) {
	reference := func(def *pb.Definition) *pb.Reference { return def.GetSteps()[4].GetReference() }
	for name, change := range map[string]func(def *pb.Definition){
		"no steps":                        func(def *pb.Definition) { def.Steps = nil },
		"no type":                         func(def *pb.Definition) { def.Type = 0 },
		"no dialect":                      func(def *pb.Definition) { def.Dialect = 0 },
		"a name twice":                    func(def *pb.Definition) { def.Steps[1].Name = "short" },
		"a name that is none":             func(def *pb.Definition) { def.Steps[1].Name = "a/b" },
		"an unknown when":                 func(def *pb.Definition) { def.Steps[1].When = "never" },
		"a timeout below zero":            func(def *pb.Definition) { def.Steps[1].Timeout = durationpb.New(-time.Second) },
		"a broken expression":             func(def *pb.Definition) { def.Steps[1].Condition = "(" },
		"an expression of what is not":    func(def *pb.Definition) { def.Steps[1].Condition = "steps.nobody.status" },
		"a variable that is none":         func(def *pb.Definition) { def.Env["A=B"] = "x" },
		"a text with NUL":                 func(def *pb.Definition) { def.Env["A"] = "\x00" },
		"a reference beside its text":     func(def *pb.Definition) { reference(def).Path = "/etc" },
		"a file with a path":              func(def *pb.Definition) { def.Steps[7].Reference.File = "../../x.yml" },
		"a directory that leads outside":  func(def *pb.Definition) { def.Steps[7].Reference.Path = "../x" },
		"an option of git as a revision":  func(def *pb.Definition) { def.Steps[7].Reference.Rev = "--upload-pack=x" },
		"a protocol of git's":             func(def *pb.Definition) { def.Steps[7].Reference.Url = "ext::sh" },
		"a reference without a protocol":  func(def *pb.Definition) { def.Steps[7].Reference.Protocol = 0 },
		"a step without anything to run":  func(def *pb.Definition) { def.Steps[4].Reference, def.Steps[4].Step = nil, "" },
		"both a reference and a command":  func(def *pb.Definition) { def.Steps[4].Definition = def.Steps[12].Definition },
		"a script of a request":           func(def *pb.Definition) { def.Steps[4].Script = "echo" },
		"an empty command":                func(def *pb.Definition) { def.Steps[12].Definition.Exec.Command = nil },
		"a command that has a spec":       func(def *pb.Definition) { def.Steps[12].Definition.Spec = &pb.Spec{} },
		"a pattern that is none":          func(def *pb.Definition) { def.Spec.Spec.Inputs["who"].Match = "(" },
		"a default of another type":       func(def *pb.Definition) { def.Spec.Spec.Inputs["who"].Type = pb.Spec_number },
		"a type there is not":             func(def *pb.Definition) { def.Spec.Spec.Inputs["who"].Type = 99 },
		"an output that nobody declared":  func(def *pb.Definition) { delete(def.Spec.Spec.Outputs, "said") },
		"the outputs of a step not there": func(def *pb.Definition) { def.Outputs, def.Delegate = nil, "nobody" },
		"lists in lists without an end": func(def *pb.Definition) {
			inner := proto.CloneOf(def)
			for range yamltree.MaxDepth + 2 {
				inner = &pb.Definition{
					Type: pb.DefinitionType_steps, Dialect: pb.Definition_v1,
					Steps: []*pb.Step{{Name: "a", When: OnSuccess, Definition: inner}},
				}
			}
			def.Steps[13].Definition = inner
		},
	} {
		t.Run(name, func(t *testing.T) {
			def, err := ParseCalled("steps", []byte(allForms))
			require.NoError(t, err)
			change(def)
			require.Error(t, roundTrip(def))
		})
	}
	require.Error(t, roundTrip(nil))
	require.Error(t, roundTrip(&pb.Definition{Type: pb.DefinitionType_steps, Steps: []*pb.Step{nil}}))
}

func FuzzDefinitionsHaveATextThatCompilesToThem(f *testing.F) {
	f.Add([]byte(allForms))
	f.Add([]byte("spec: {outputs: {o: {type: string}}}\n---\nexec: {command: [a, '${{ output_file }}']}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		def, err := ParseCalled("steps", text)
		if err != nil {
			return
		}
		require.NoError(t, roundTrip(def))
	})
}
