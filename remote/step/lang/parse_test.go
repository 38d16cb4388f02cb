package lang

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"

	"github.com/stepmux/stepmux/internal/testing/racefree"
)

// job returns a definition of today's dialect with steps.
func job(list ...*pb.Step) *pb.Definition {
	for _, s := range list {
		s.When = cmp.Or(s.GetWhen(), OnSuccess)
	}
	return &pb.Definition{
		Type:    pb.DefinitionType_steps,
		Dialect: pb.Definition_v1,
		Spec:    &pb.Spec{Spec: &pb.Spec_Content{}},
		Steps:   list,
	}
}

// script returns a step that runs text.
func script(name, text string) *pb.Step {
	return &pb.Step{
		Name:      name,
		Step:      "builtin://script",
		Reference: &pb.Reference{Protocol: pb.Reference_builtin, Path: ScriptStep},
		Inputs:    map[string]*structpb.Value{"script": structpb.NewStringValue(text)},
	}
}

// command returns a step that runs a command.
func command(name, dir string, argv ...string) *pb.Step {
	return &pb.Step{Name: name, Definition: &pb.Definition{
		Type:    pb.DefinitionType_exec,
		Dialect: pb.Definition_v1,
		Exec:    &pb.Exec{Command: argv, WorkDir: dir},
	}}
}

func with(s *pb.Step, change func(*pb.Step)) *pb.Step {
	change(s)
	return s
}

func requireDefinition(t *testing.T, want, got *pb.Definition) {
	t.Helper()
	if !proto.Equal(want, got) {
		require.Equal(t, prototext.Format(want), prototext.Format(got))
	}
}

func TestParseReadsAJob(t *testing.T) {
	def, err := Parse("job.yml", []byte(`
env: {LEVEL: all}
run:
  - name: build
    script: |
      make all
      echo done
    env:
      CC: clang
      EMPTY: ""
  - exec: {command: [make, "test"], work_dir: src, timeout: 90s}
    when: on_failure
  - name: _clean2
    script: rm -rf tmp
    when: always
    if: ${{ env.KEEP != "yes" }}
    timeout: 1h30m
  - name: call
    step: ./ci/deploy.yml
    inputs: {n: 1.5, list: [a, {b: null}], "yes": true}
  - name: group
    run:
      - script: echo inner
`))
	require.NoError(t, err)
	inputs, err := structpb.NewStruct(map[string]any{"n": 1.5, "list": []any{"a", map[string]any{"b": nil}}, "yes": true})
	require.NoError(t, err)
	want := job(
		with(script("build", "make all\necho done\n"),
			func(s *pb.Step) { s.Env = map[string]string{"CC": "clang", "EMPTY": ""} }),
		with(command("step_2", "src", "make", "test"), func(s *pb.Step) {
			s.When, s.Definition.Exec.Timeout = OnFailure, durationpb.New(90*time.Second)
		}),
		with(script("_clean2", "rm -rf tmp"), func(s *pb.Step) {
			s.When, s.Condition, s.Timeout = Always, ` env.KEEP != "yes" `, durationpb.New(90*time.Minute)
		}),
		&pb.Step{
			Name: "call", Step: "./ci/deploy.yml", Inputs: inputs.GetFields(),
			Reference: &pb.Reference{Protocol: pb.Reference_local, Path: "./ci", File: "deploy.yml"},
		},
		&pb.Step{Name: "group", Definition: &pb.Definition{
			Type: pb.DefinitionType_steps, Dialect: pb.Definition_v1,
			Steps: []*pb.Step{with(script("step_1", "echo inner"), func(s *pb.Step) { s.When = OnSuccess })},
		}},
	)
	want.Env = map[string]string{"LEVEL": "all"}
	requireDefinition(t, want, def)
}

func TestParseAcceptsTheFormsAJobIsWrittenIn(t *testing.T) {
	oneScript := job(script("a", "echo hi"))
	oneExec := job(command("step_1", "", "make"))
	oneExec.Steps[0].Definition.Spec = oneExec.GetSpec()
	values := job(with(script("step_1", "yes"), func(s *pb.Step) { s.Env = map[string]string{"A": "yes", "B": "off"} }))
	w := map[string]string{"K": "w"}
	aliases := job(
		with(script("a", "x"), func(s *pb.Step) { s.Env = w }),
		with(script("b", "w"), func(s *pb.Step) { s.Env = w }),
	)
	for name, tc := range map[string]struct {
		text string
		want *pb.Definition
	}{
		"run":                        {"run:\n- {name: a, script: echo hi}\n", oneScript},
		"list":                       {"- name: a\n  script: echo hi\n", oneScript},
		"JSON":                       {`[{"name":"a","script":"echo hi"}]`, oneScript},
		"empty mapping, then run":    {"{}\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"null, then run":             {"---\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"empty spec, then run":       {"spec:\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"spec as mapping, then list": {"spec: {}\n---\n- {name: a, script: echo hi}\n", oneScript},
		"exec alone":                 {"spec:\n---\nexec: {command: [make]}\n", oneExec},
		"null for an empty mapping":  {"env:\nrun:\n- {name: a, env: , inputs: , script: echo hi}\n", oneScript},
		"anchors":                    {"- name: a\n  env: &e {}\n  script: echo hi\n", oneScript},
		"Windows line ends":          {"run:\r\n- name: a\r\n  script: echo hi\r\n", oneScript},
		"aliases": {
			"- {name: a, script: x, env: &e {K: &v w}}\n- {name: b, script: *v, env: *e}\n",
			aliases,
		},
		"words that are true in old YAML": {
			"- {script: 'yes', env: {A: yes, B: off}}\n", values,
		},
	} {
		t.Run(name, func(t *testing.T) {
			def, err := Parse("job.yml", []byte(tc.text))
			require.NoError(t, err)
			requireDefinition(t, tc.want, def)
		})
	}
}

//stepmux:faults engine | Misspelt keys are accepted
//stepmux:with remote/step/engine.TestVisibleMistakesFailTheJobBeforeTheFirstStep
//stepmux:faults engine | Of two steps with one name the second replaces the first
//stepmux:with remote/step/lang.TestCorpusIsAcceptedOrRefused
func TestParseNamesTheMistakeItsPlaceAndTheRemedy(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"misspelt key":    {"- name: a\n  scrpt: x\n", `j:2:3: unknown key "scrpt", did you mean "script"?`},
		"swapped letters": {"- {evn: a}\n", `j:1:4: unknown key "evn", did you mean "env"?`},
		"dashes": {
			"- exec: {command: [a], work-dir: b}\n",
			`j:1:24: unknown key "work-dir", did you mean "work_dir"?`,
		},
		"unknown key": {"- script: x\n  image: y\n", `j:2:3: unknown key "image"; a step has name, step, func, ` +
			`script, exec, run, action, inputs, env, when, if, timeout`},
		"unknown key of a job": {
			"run: []\nstages: 1\n",
			`j:2:1: unknown key "stages"; a job has run, exec, env, outputs, delegate`,
		},
		"key that may hold a secret": {
			"- script: |\n  curl -H \"token=geheim\": 1\n",
			`j:2:3: unknown key; a step has name, step, func, script, exec, run, action, inputs, env, when, if, timeout`,
		},
		"duplicate key": {"- name: a\n  name: b\n", `j:2:3: the key "name" is given twice`},
		"duplicate variable": {
			"- {script: x, env: {A: b, A: c}}\n",
			`j:1:27: the key "A" is given twice`,
		},
		"duplicate name": {
			"- {name: a, script: x}\n- {name: a, script: y}\n",
			`j:2:10: the name "a" is taken by step 1; the names of a list's steps must differ`,
		},
		"given name is made up": {
			"- {name: step_2, script: x}\n- script: y\n",
			`j:2:3: the name "step_2" is taken by step 1; the names of a list's steps must differ`,
		},
		"name with blank": {
			"- {name: not allowed, script: x}\n",
			`j:1:10: the name "not allowed" is not valid; use letters, digits and _, not a digit first, at most 256 in all`,
		},
		"name with digit": {
			"- {name: 1a, script: x}\n",
			`j:1:10: the name "1a" is not valid; use letters, digits and _, not a digit first, at most 256 in all`,
		},
		"empty name": {
			"- {name: '', script: x}\n",
			`j:1:10: the name is not valid; use letters, digits and _, not a digit first, at most 256 in all`,
		},
		"variable name": {
			"- script: x\n  env:\n    invalid name: foo\n",
			`j:3:5: the variable name "invalid name" is not valid; use letters, digits and _, not a digit first`,
		},
		"number": {"- script: 12\n", `j:1:11: script must be a text, not a number; put it in quotes`},
		"number in command": {
			"- exec: {command: [sleep, 1]}\n",
			`j:1:27: an argument of command must be a text, not a number; put it in quotes`,
		},
		"boolean": {
			"- {script: x, env: {A: true}}\n",
			`j:1:24: the value of "A" must be a text, not true or false; put it in quotes`,
		},
		"date": {
			"- {script: x, env: {A: 2024-01-01}}\n",
			`j:1:24: the value of "A" must be a text, not a date; put it in quotes`,
		},
		"null": {
			"- script: x\n  env: {A: }\n",
			`j:2:12: the value of "A" must be a text, not nothing; for an empty text write ""`,
		},
		"list for a text":    {"- script: [a]\n", `j:1:11: script must be a text, not a list`},
		"text for a list":    {"- exec: {command: make}\n", `j:1:19: command must be a list, not a text`},
		"text for a mapping": {"- echo hi\n", `j:1:3: a step must be a mapping (key: value), not a text`},
		"run is a mapping":   {"run: {script: x}\n", `j:1:6: run must be a list, not a mapping`},
		"text alone":         {"hello\n", `j:1:1: a job must be a mapping (key: value), not a text`},
		"key is a list":      {"- {[a]: b}\n", `j:1:4: a key must be a text, not a list`},
		"both": {
			"- name: a\n  script: x\n  exec: {command: [a]}\n",
			`j:3:3: the step has both script and exec; a step has one of them`,
		},
		"step and script": {
			"- name: a\n  step: ./e\n  script: x\n",
			`j:3:3: the step has both step and script; a step has one of them`,
		},
		"nothing to run": {
			"- name: a\n",
			`j:1:3: the step has nothing to run; give it a script, a step, an exec or a run`,
		},
		"inputs of a script": {
			"- script: x\n  inputs: {a: 1}\n",
			`j:2:12: script takes no inputs but shell; pass values in env`,
		},
		"empty script": {"- script: ' '\n", `j:1:11: script is empty; write the commands for the shell`},
		"empty command": {
			"- exec: {command: []}\n",
			`j:1:19: command is empty; write the program and its arguments, such as [make, test]`,
		},
		"no command": {
			"- exec: {}\n",
			`j:1:9: command is empty; write the program and its arguments, such as [make, test]`,
		},
		"empty program": {"- exec: {command: ['', a]}\n", `j:1:20: the program is empty; write its name or path`},
		"when":          {"- {script: x, when: never}\n", `j:1:21: when is one of on_success, on_failure, always`},
		"old dialect, no steps": {
			"spec:\n---\ntype: steps\nsteps: []\n",
			`j:4:8: there are no steps; write at least one, such as - script: echo hello`,
		},
		"old dialect, no spec": {
			"type: exec\nexec: {command: [a]}\n",
			`j:1:1: type belongs to the definition of a step, after its spec and a line ---; write the steps as run`,
		},
		"step outside a list": {
			"name: a\nscript: x\n",
			`j:1:1: name belongs to a step, and steps stand in a list: write - before it`,
		},
		"run and exec": {
			"run: []\nexec: {command: [a]}\n",
			`j:2:7: there are both run and exec; write one of them`,
		},
		"empty": {"", `j: the text is empty; write a list of steps, such as - script: echo hello`},
		"comment only": {
			"# nothing\n",
			`j: the text is empty; write a list of steps, such as - script: echo hello`,
		},
		"empty document": {
			"---\n",
			`j:2:1: there are no steps; write run: and below it a list of them, such as - script: echo hello`,
		},
		"empty list": {
			"run: []\n",
			`j:1:6: there are no steps; write at least one, such as - script: echo hello`,
		},
		"no run": {"env: {A: b}\n", `j:1:1: there are no steps; write run: and below it a list of them`},
		"spec in one document": {
			"spec:\nrun: []\n",
			`j:1:1: spec stands in a document of its own; write --- on a line between it and the rest`,
		},
		"documents out of order": {
			"run: [{script: x}]\n---\nspec:\n",
			`j:1:1: unknown key "run"; the first of two documents holds spec, the second run or exec`,
		},
		"unknown type": {
			"spec: {inputs: {a: {type: strng}}}\n---\nrun: []\n",
			`j:1:27: the input "a" has an unknown type "strng", did you mean "string"?`,
		},
		"three documents": {
			"{}\n---\nrun: [{script: x}]\n---\na: b\n",
			`j:5:1: there are at most two documents, a spec and a definition; this is a third`,
		},
		"merge key": {
			"- &a {script: x}\n- {<<: *a, name: b}\n",
			`j:2:4: merge keys (<<) are not supported; write the keys out`,
		},
		"tag": {
			"- script: !!binary aGk=\n",
			`j:1:11: the tag is not supported; remove the word that begins with !`,
		},
		"own tag": {
			"- script: !reference [a, b]\n",
			`j:1:11: the tag is not supported; remove the word that begins with !`,
		},
		"syntax": {
			"- name: [\n",
			`j:2:1: not valid YAML: did not find expected node content while parsing a flow node`,
		},
		"unknown anchor": {"- script: *geheim\n", `j:1:11: not valid YAML: the alias has no anchor before it`},
		"tab": {
			"-\n\tscript: x\n",
			`j:2:1: not valid YAML: found character that cannot start any token while scanning for the next token`,
		},
		"NUL": {
			"- script: a\x00b\n",
			`j:1:12: the text holds the control character U+0000; in a double-quoted text it can be written as an escape`,
		},
		"escaped NUL": {
			"- script: \"a\\0b\"\n",
			`j:1:11: the text holds a NUL byte, which no program can be given`,
		},
		"NUL in env": {
			"- {script: x, env: {A: \"\\0\"}}\n",
			`j:1:24: the text holds a NUL byte, which no program can be given`,
		},
		"not UTF-8": {"- script: äö\xff\n", `j:1:13: the text is not valid UTF-8`},
		"unknown name": {
			"- name: a\n  script: echo ${{ jobs.X }}\n",
			`j:2:20: step "a": script: jobs was not found; did you mean job?`,
		},
		"expression in a block": {
			"- name: a\n  script: |\n    echo x\n\n    echo ä ${{ job.X\n",
			`j:5:12: step "a": script: the expression ${{ is not closed; write }} at its end, or \${{ for the text itself`,
		},
		"expression after its escape": {
			"- name: a\n  script: |\n    echo \\${{ a ${{ job.X\n",
			`j:3:17: step "a": script: the expression ${{ is not closed; write }} at its end, or \${{ for the text itself`,
		},
		"expression in env": {
			"- {script: x, env: {A: '${{ b }}'}}\n",
			`j:1:29: step "step_1": env: b was not found; there are env, export_file, func_dir, inputs, job, output_file, ` +
				`step_dir, steps, vars, work_dir`,
		},
		"expression in a key": {
			"- {script: x, env: {'${{ a }}': b}}\n",
			`j:1:26: step "step_1": a key of env: a was not found; there are env, export_file, func_dir, inputs, job, ` +
				`output_file, step_dir, steps, vars, work_dir`,
		},
		"expression in command": {
			"- exec: {command: ['${{ a }}']}\n",
			`j:1:25: step "step_1": command: a was not found; there are env, export_file, func_dir, inputs, job, output_file, ` +
				`step_dir, steps, vars, work_dir`,
		},
		"expression in work_dir": {
			"- exec: {command: [a], work_dir: '${{ a }}'}\n",
			`j:1:39: step "step_1": work_dir: a was not found; there are env, export_file, func_dir, inputs, job, ` +
				`output_file, step_dir, steps, vars, work_dir`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("j", []byte(tc.text))
			require.EqualError(t, err, tc.want)
			var at *Error
			require.ErrorAs(t, err, &at)
			if at.Line > 0 {
				require.Equal(t, fmt.Sprintf("j:%d:%d", at.Line, at.Column), at.Where)
			}
		})
	}
}

func TestParseTakesEscapedExpressionsAndBareDollarsAsText(t *testing.T) {
	def, err := Parse("j", []byte(`
- script: |
    echo 'Use \${{ to start' \${{ x }}
    echo $ $X ${X} $[[ inputs.x ]] }} \$ \\
  env: {A: '\${{ a }}'}
- exec: {command: [echo, 'a\${{b']}
`))
	require.NoError(t, err)
	text, literal := Literal(scriptOf(def.GetSteps()[0]))
	require.True(t, literal)
	require.Equal(t, "echo 'Use ${{ to start' ${{ x }}\necho $ $X ${X} $[[ inputs.x ]] }} \\$ \\\\\n", text)
	text, literal = Literal(def.GetSteps()[0].GetEnv()["A"])
	require.True(t, literal)
	require.Equal(t, "${{ a }}", text)
	text, literal = Literal(def.GetSteps()[1].GetDefinition().GetExec().GetCommand()[1])
	require.True(t, literal)
	require.Equal(t, "a${{b", text)
}

func TestParseIsBounded(t *testing.T) {
	racefree.Only(t)
	t.Run("text over 1 MiB", func(t *testing.T) {
		_, err := Parse("j", []byte("- script: "+strings.Repeat("x", MaxText)))
		require.EqualError(t, err, "j: the text has more than 1 MiB; move scripts into files")
	})
	t.Run("text of almost 1 MiB", func(t *testing.T) {
		def, err := Parse("j", []byte("- script: "+strings.Repeat("x", MaxText-10)))
		require.NoError(t, err)
		require.Len(t, scriptOf(def.GetSteps()[0]), MaxText-10)
	})
	t.Run("most steps", func(t *testing.T) {
		def, err := Parse("j", []byte(strings.Repeat("- {script: x}\n", MaxSteps)))
		require.NoError(t, err)
		require.Len(t, def.Steps, MaxSteps)
	})
	t.Run("one step too many", func(t *testing.T) {
		_, err := Parse("j", []byte(strings.Repeat("- {script: x}\n", MaxSteps+1)))
		require.EqualError(t, err, "j:1:1: 10001 steps are too many, at most 10000 are allowed")
	})
	t.Run("deep nesting", func(t *testing.T) {
		for _, text := range []string{
			strings.Repeat("[", MaxText), strings.Repeat("- ", MaxText/2),
			strings.Repeat("{a: ", 1000),
		} {
			_, err := Parse("j", []byte(text))
			require.ErrorContains(t, err, "exceeded max depth of 64")
		}
	})
	t.Run("alias bomb", func(t *testing.T) {
		text := "- {script: a, env: {A: &a " + strings.Repeat("x", 1000) + "}}\n" +
			strings.Repeat("- {script: *a, env: {A: *a, B: *a, C: *a}}\n", 9000)
		_, err := Parse("j", []byte(text))
		require.ErrorContains(t, err, "aliases and other repeated parts make this text too large; write it shorter")
	})
	t.Run("alias bomb of small values", func(t *testing.T) {
		text, err := os.ReadFile("testdata/refused/step-alias-bomb.yml")
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = ParseStep("s", text)
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, "aliases and other repeated parts make this text too large")
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
	})
	t.Run("as many values as a text has room for", func(t *testing.T) {
		text := "- {step: ./s, inputs: {a: [" + strings.Repeat("x,", MaxText/2-20) + "]}}"
		def, err := Parse("j", []byte(text))
		require.NoError(t, err)
		require.Len(t, def.Steps[0].Inputs["a"].GetListValue().Values, MaxText/2-20)
	})
	// Symptom: such a text of 1 MiB took a minute, because each use made a list of all inputs.
	t.Run("as many uses of many inputs", func(t *testing.T) {
		inputs := ""
		for i := range 5000 {
			inputs += fmt.Sprintf("  i%d: {type: string, default: x}\n", i)
		}
		text := "spec:\n inputs:\n" + inputs + "---\n- script: " + strings.Repeat("${{inputs.i4999}}", 40_000)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse("j", []byte(text))
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(400<<20))
	})
	t.Run("alias of itself", func(t *testing.T) {
		for _, text := range []string{"&a [*a]", "- &a {env: *a}", "&a {run: *a}", "- &a {exec: {command: [*a]}}"} {
			_, err := Parse("j", []byte(text))
			require.Error(t, err)
		}
	})
	t.Run("argument and variables", func(t *testing.T) {
		long := strings.Repeat("x", MaxArg+1)
		_, err := Parse("j", []byte("- exec: {command: [a, "+long+"]}"))
		require.ErrorContains(t, err, "the argument has 131072 bytes, at most 131071 can be passed")
		_, err = Parse("j", []byte("- {script: x, env: {A: "+long+"}}"))
		require.ErrorContains(t, err, "the variable has 131074 bytes, at most 131071 can be passed")
	})
}

func scriptOf(s *pb.Step) string { return s.GetInputs()["script"].GetStringValue() }

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"run:\n- {name: a, script: echo hi}\n", "{}\n---\nrun: [{exec: {command: [a], work_dir: b}}]\n",
		"- script: |\n    a\n    ${{ b }}\n", "- &a {script: x, env: {A: b}}\n- *a\n", "- script: \"\\0\"\n", "&a [*a]",
		"- name: [\n",
		"- script: |2\n   ${{\n", "- script: >\n   a ${{\n", "-\r  script: |\r    ${{",
		"spec: {inputs: {a: {type: number, default: 1}}}\n---\nrun: [{name: a, step: \"${{ inputs.a }}\", if: " +
			"true}]\noutputs: {b: [1.5, .inf]}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		def, err := Parse("j", data)
		if err != nil {
			var at *Error
			require.ErrorAs(t, err, &at)
			require.LessOrEqual(t, at.Line, 2+strings.Count(string(data), "\n")+strings.Count(string(data), "\r")+
				strings.Count(string(data), "\u0085")+strings.Count(string(data), "\u2028")+strings.Count(string(data), "\u2029"))
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.NotEmpty(t, def.GetSteps())
		names := map[string]bool{}
		for _, s := range def.GetSteps() {
			require.True(t, isName(s.GetName()))
			require.False(t, names[s.GetName()])
			names[s.GetName()] = true
			require.NotEqual(t, s.GetReference() == nil, s.GetDefinition() == nil)
		}
	})
}

func ExampleParse() {
	_, err := Parse("job.yml", []byte("run:\n  - name: build\n    scrpt: make\n"))
	fmt.Println(err)
	// Output: job.yml:3:5: unknown key "scrpt", did you mean "script"?
}
