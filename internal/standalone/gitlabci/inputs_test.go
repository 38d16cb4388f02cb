package gitlabci

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// component is a file with inputs of all types.
const component = `
spec:
  inputs:
    job-prefix: {default: unit}
    stage: {options: [build, test], description: where it runs}
    count: {type: number, default: 2}
    manual: {type: boolean, default: false}
    commands: {type: array, default: [echo none]}
    version: {regex: '^v\d+\.\d+$', default: v1.0}
---
"$[[ inputs.job-prefix ]]-job":
  stage: $[[ inputs.stage ]]
  parallel: $[[ inputs.count ]]
  rules: [{if: $NO, when: never}, {allow_failure: "$[[ inputs.manual ]]"}]
  variables: {V: "$[[ inputs.version ]] in $[[inputs.stage]]", N: "$[[ inputs.count ]]"}
  script: $[[ inputs.commands ]]
`

func TestInputsOfAnIncludedFileAreFilledIn(t *testing.T) {
	files := project{"component.yml": component}
	const include = "include:\n- local: component.yml\n  inputs: "
	j := job(t, include+"{stage: build}", "unit-job 2/2", files)
	require.Equal(t, "echo none", script(j))
	v := values(j)
	require.Equal(t, []string{"v1.0 in build", "2", "2", "build"},
		[]string{v["V"], v["N"], v["CI_NODE_TOTAL"], v["CI_JOB_STAGE"]})
	require.Empty(t, j.Notices)

	// The same file again, with other values. They are filled in before the file is merged.
	text := include + `{stage: test, job-prefix: "a $[[ x ]]", version: v2.3}
- local: component.yml
  inputs: {stage: build, job-prefix: b, count: 1, commands: ["echo one", "echo two"]}
`
	require.Equal(t, "v2.3 in test", values(job(t, text, "a $[[ x ]]-job 1/2", files))["V"])
	require.Equal(t, "echo one\necho two", script(job(t, text, "b-job 1/1", files)))

	// Inputs go on to the files that a file includes.
	files["outer.yml"] = "spec: {inputs: {where: }}\n---\n" +
		"include: [{local: component.yml, inputs: {stage: '$[[ inputs.where ]]'}}]\n"
	j = job(t, "include: [{local: outer.yml, inputs: {where: test}}]", "unit-job 1/2", files)
	require.Equal(t, "v1.0 in test", values(j)["V"])
}

func TestFunctionsOfInputs(t *testing.T) {
	const text = `
spec: {inputs: {a: {default: "it's $WHO"}, n: {type: number, default: 1.5}}}
---
j:
  variables:
    PLAIN: $[[ inputs.a ]]
    CUT: x$[[ inputs.a | truncate(1,4) ]]x
    BEHIND: "[$[[ inputs.a | truncate(50,4) ]]]"
    QUOTED: $[[ inputs.a | expand_vars | posix_escape ]]
    NUMBER: n$[[ inputs.n ]]
    OTHER: $[[ component.version ]]
  script: ["echo $[[ component.version ]]"]
`
	file, err := Read("ci.yml", []byte(text), Config{Predefined: []Variable{{"WHO", "me & you"}}})
	require.NoError(t, err)
	j, err := file.Job("j")
	require.NoError(t, err)
	v := values(j)
	require.Equal(t, []string{"it's me & you", "xt's x", "[]", `it\'s\ me\ \&\ you`, "n1.5", "$[[ component.version ]]"},
		[]string{v["PLAIN"], v["CUT"], v["BEHIND"], v["QUOTED"], v["NUMBER"], v["OTHER"]})
	require.Equal(t, []string{
		"not done here, but by a server or runner: $[[ component.version ]]",
		"$[[ ]] stays as it is: it is about no input of its file",
	}, j.Notices)
}

func TestInputsOfTheFileItselfAreGivenByTheCaller(t *testing.T) {
	const text = `
spec: {inputs: {who: , times: {type: number, default: 1}, list: {type: array, default: []}}}
---
j: {variables: {W: "$[[ inputs.who ]]", T: "$[[ inputs.times ]]"}, script: ["a", "$[[ inputs.list ]]"]}
`
	read := func(inputs map[string]string) (*Job, error) {
		file, err := Read("ci.yml", []byte(text), Config{Inputs: inputs})
		if err != nil {
			return nil, err
		}
		require.Empty(t, file.Check(nil), "a file may need inputs")
		return file.Job("j")
	}
	j, err := read(map[string]string{"who": "a: ${{ b }}", "times": "3", "list": `["b", "c"]`})
	require.NoError(t, err)
	require.Equal(t, []string{"a: ${{ b }}", "3", "a\nb\nc"}, []string{values(j)["W"], values(j)["T"], script(j)})
	for message, inputs := range map[string]map[string]string{
		`ci.yml:2:17: the input "who" has no value and no default; give it one by --input`: nil,
		`ci.yml:2:7: the file has no input "whom", did you mean "who"?`:                    {"who": "a", "whom": "b"},
		`ci.yml:1:1: the input "times" takes a number, not a text`:                         {"who": "a", "times": "many"},
		`ci.yml:2:24: the value that was given for the input "list" cannot be read`:        {"who": "a", "list": "[a"},
	} {
		_, err := read(inputs)
		require.Error(t, err)
		_, want, _ := strings.Cut(message, ": ")
		require.ErrorContains(t, err, want)
	}
}

// Symptom: the program crashed.
func TestInputOfAFileWhoseSpecHasNoInputs(t *testing.T) {
	for _, spec := range []string{"spec: {description: a}", "spec: {inputs: }", "spec: "} {
		_, err := Read("ci.yml", []byte(spec+"\n---\nj: {script: [a]}\n"), Config{Inputs: map[string]string{"a": "b"}})
		require.ErrorContains(t, err, `the file has no input "a"`)
	}
}

func TestMistakesInInputsHaveAPlace(t *testing.T) {
	files := project{
		"none.yml": "variables: {}\n", "one.yml": "spec: {inputs: {a: }}\n---\nvariables: {A: '$[[ inputs.a ]]'}\n",
		"typed.yml": "spec: {inputs: {a: {type: boolean}}}\n---\nvariables: {}\n",
		"few.yml":   "spec: {inputs: {a: {options: [x, y]}}}\n---\nvariables: {}\n",
	}
	for text, want := range map[string]string{
		"include: {local: none.yml, inputs: {a: b}}":         "ci.yml:1:36: include: the file has no spec",
		"include: {local: one.yml}":                          `one.yml:1:17: the input "a" has no default`,
		"include: {local: one.yml, inputs: {a: b, c: d}}":    `ci.yml:1:42: include: the file has no input "c"`,
		"include: {local: one.yml, inputs: {a: 1}}":          `ci.yml:1:39: the input "a" takes a text, not a number`,
		"include: {local: one.yml, inputs: [a]}":             "ci.yml:1:35: inputs must be a mapping",
		"include: {local: typed.yml, inputs: {a: maybe}}":    `ci.yml:1:41: the input "a" takes true or false, not a text`,
		"include: {local: few.yml, inputs: {a: z}}":          `ci.yml:1:39: the input "a" has a value that is not one`,
		"spec: {inputs: [a]}\n---\n":                         "ci.yml:1:16: inputs must be a mapping",
		"spec: a\n---\n":                                     "ci.yml:1:7: spec must be a mapping with inputs, not a text",
		"spec: {inputs: {a: b}}\n---\n":                      "ci.yml:1:20: an input must be a mapping",
		"spec: {inputs: {a: {typ: b}}}\n---\n":               `ci.yml:1:21: unknown key "typ", did`,
		"spec: {inputs: {a: {type: text}}}\n---\n":           "ci.yml:1:27: the type of an input is string",
		"spec: {inputs: {a: {default: 1}}}\n---\n":           `ci.yml:1:30: the input "a" takes a text, not a number`,
		"spec: {inputs: {a: {regex: x, default: b}}}\n---\n": `ci.yml:1:40: the input "a" has a value that`,
		"spec: {inputs: {abc: {default: b}}}\n---\nx: $[[ inputs.abd ]]\n": `ci.yml:3:4: the spec of the file has no input ` +
			`"abd", did you mean "abc"?`,
		"spec: {inputs: {a: {default: b}}}\n---\nx: $[[ inputs.a | upper ]]\n": `ci.yml:3:4: unknown function "upper"`,
		"spec: {inputs: {a: {default: [b], type: array}}}\n---\nx: a $[[ inputs.a ]]\n": "ci.yml:3:4: a list stands alone: " +
			"write - $[[ inputs.a ]]",
	} {
		require.Contains(t, wrong(text+"\nj: {script: [a]}", files), want, text)
	}
}

// A short file that would become a large one.
func TestInputsAreBounded(t *testing.T) {
	spec := "spec: {inputs: {a: {default: " + strings.Repeat("x", 100_000) + "}}}\n---\n"
	for _, block := range []string{"$[[ inputs.a ]]", "$[[ inputs.a | truncate(0,1) ]]"} {
		require.NotEmpty(t, wrong(spec+"j: {script: [\""+strings.Repeat(block, 10_000)+"\"]}\n", nil), block)
		require.NotEmpty(t, wrong(spec+"j: {script: [a"+strings.Repeat(", '"+block+"'", 10_000)+"]}\n", nil), block)
	}
}
