package steps

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
  - exec: {command: [make, "test"], work_dir: src}
    when: on_failure
  - name: _clean2
    script: rm -rf tmp
    when: always
`))
	require.NoError(t, err)
	require.Equal(t, &Definition{
		Env: map[string]string{"LEVEL": "all"},
		Steps: []Step{
			{Name: "build", When: OnSuccess, Script: "make all\necho done\n", Env: map[string]string{"CC": "clang", "EMPTY": ""}},
			{Name: "step_2", When: OnFailure, Exec: &Exec{Command: []string{"make", "test"}, WorkDir: "src"}},
			{Name: "_clean2", When: Always, Script: "rm -rf tmp"},
		},
	}, def)
}

func TestParseAcceptsTheFormsAJobIsWrittenIn(t *testing.T) {
	oneScript := &Definition{Steps: []Step{{Name: "a", When: OnSuccess, Script: "echo hi"}}}
	oneExec := &Definition{Steps: []Step{{Name: "step_1", When: OnSuccess, Exec: &Exec{Command: []string{"make"}}}}}
	for name, tc := range map[string]struct {
		text string
		want *Definition
	}{
		"run":                        {"run:\n- {name: a, script: echo hi}\n", oneScript},
		"list":                       {"- name: a\n  script: echo hi\n", oneScript},
		"JSON":                       {`[{"name":"a","script":"echo hi"}]`, oneScript},
		"empty mapping, then run":    {"{}\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"null, then run":             {"---\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"empty spec, then run":       {"spec:\n---\nrun:\n- {name: a, script: echo hi}\n", oneScript},
		"spec as mapping, then list": {"spec: {}\n---\n- {name: a, script: echo hi}\n", oneScript},
		"exec alone":                 {"spec:\n---\nexec: {command: [make]}\n", oneExec},
		"anchors":                    {"- name: a\n  env: &e {}\n  script: echo hi\n", oneScript},
		"Windows line ends":          {"run:\r\n- name: a\r\n  script: echo hi\r\n", oneScript},
		"aliases": {
			"- {name: a, script: x, env: &e {K: &v w}}\n- {name: b, script: *v, env: *e}\n",
			&Definition{Steps: []Step{
				{Name: "a", When: OnSuccess, Script: "x", Env: map[string]string{"K": "w"}},
				{Name: "b", When: OnSuccess, Script: "w", Env: map[string]string{"K": "w"}},
			}},
		},
		"words that are true in old YAML": {
			"- {script: 'yes', env: {A: yes, B: off}}\n",
			&Definition{Steps: []Step{{Name: "step_1", When: OnSuccess, Script: "yes", Env: map[string]string{"A": "yes", "B": "off"}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			def, err := Parse("job.yml", []byte(tc.text))
			require.NoError(t, err)
			require.Equal(t, tc.want, def)
		})
	}
}

func TestParseNamesTheMistakeItsPlaceAndTheRemedy(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"misspelt key":         {"- name: a\n  scrpt: x\n", `j:2:3: unknown key "scrpt", did you mean "script"?`},
		"swapped letters":      {"- {evn: a}\n", `j:1:4: unknown key "evn", did you mean "env"?`},
		"dashes":               {"- exec: {command: [a], work-dir: b}\n", `j:1:24: unknown key "work-dir", did you mean "work_dir"?`},
		"unknown key":          {"- script: x\n  image: y\n", `j:2:3: unknown key "image"; a step has name, script, exec, env, when`},
		"unknown key of a job": {"run: []\nstages: 1\n", `j:2:1: unknown key "stages"; a job has run, exec, env`},
		"key that may hold a secret": {
			"- script: |\n  curl -H \"token=geheim\": 1\n",
			`j:2:3: unknown key; a step has name, script, exec, env, when`,
		},
		"duplicate key":          {"- name: a\n  name: b\n", `j:2:3: the key "name" stands here for the second time`},
		"duplicate variable":     {"- {script: x, env: {A: b, A: c}}\n", `j:1:27: the key "A" stands here for the second time`},
		"duplicate name":         {"- {name: a, script: x}\n- {name: a, script: y}\n", `j:2:10: the name "a" is taken by step 1; the names of a job's steps must differ`},
		"given name is made up":  {"- {name: step_2, script: x}\n- script: y\n", `j:2:3: the name "step_2" is taken by step 1; the names of a job's steps must differ`},
		"name with blank":        {"- {name: not allowed, script: x}\n", `j:1:10: the name "not allowed" is not valid; use letters, digits and _, not a digit first, at most 256 in all`},
		"name with digit":        {"- {name: 1a, script: x}\n", `j:1:10: the name "1a" is not valid; use letters, digits and _, not a digit first, at most 256 in all`},
		"empty name":             {"- {name: '', script: x}\n", `j:1:10: the name is not valid; use letters, digits and _, not a digit first, at most 256 in all`},
		"variable name":          {"- script: x\n  env:\n    invalid name: foo\n", `j:3:5: the variable name "invalid name" is not valid; use letters, digits and _, not a digit first`},
		"number":                 {"- script: 12\n", `j:1:11: script must be a text, not a number; put it in quotes`},
		"number in command":      {"- exec: {command: [sleep, 1]}\n", `j:1:27: an argument of command must be a text, not a number; put it in quotes`},
		"boolean":                {"- {script: x, env: {A: true}}\n", `j:1:24: the value of "A" must be a text, not true or false; put it in quotes`},
		"date":                   {"- {script: x, env: {A: 2024-01-01}}\n", `j:1:24: the value of "A" must be a text, not a date; put it in quotes`},
		"null":                   {"- script: x\n  env: {A: }\n", `j:2:12: the value of "A" must be a text, not nothing; for an empty text write ""`},
		"list for a text":        {"- script: [a]\n", `j:1:11: script must be a text, not a list`},
		"text for a list":        {"- exec: {command: make}\n", `j:1:19: command must be a list, not a text`},
		"text for a mapping":     {"- echo hi\n", `j:1:3: a step must be a mapping (key: value), not a text`},
		"run is a mapping":       {"run: {script: x}\n", `j:1:6: run must be a list, not a mapping`},
		"text alone":             {"hello\n", `j:1:1: a job must be a mapping (key: value), not a text`},
		"key is a list":          {"- {[a]: b}\n", `j:1:4: a key must be a text, not a list`},
		"both":                   {"- name: a\n  script: x\n  exec: {command: [a]}\n", `j:3:9: the step has both script and exec; a step has one of them`},
		"step and script":        {"- name: a\n  step: ./e\n  script: x\n", `j:2:3: the step has both script and step; a step has one of them`},
		"nothing to run":         {"- name: a\n", `j:1:3: the step has nothing to run; give it a script or an exec`},
		"inputs of a script":     {"- script: x\n  inputs: {a: 1}\n", `j:2:3: script takes no inputs; pass values in env`},
		"empty script":           {"- script: ' '\n", `j:1:11: script is empty; write what the shell shall run`},
		"empty command":          {"- exec: {command: []}\n", `j:1:19: command is empty; write the program and its arguments, such as [make, test]`},
		"no command":             {"- exec: {}\n", `j:1:9: command is empty; write the program and its arguments, such as [make, test]`},
		"empty program":          {"- exec: {command: ['', a]}\n", `j:1:20: the program is empty; write its name or path`},
		"when":                   {"- {script: x, when: never}\n", `j:1:21: when is one of on_success, on_failure, always`},
		"step":                   {"- name: a\n  step: ./x\n", `j:2:3: step is not supported by this version; use script or exec`},
		"func":                   {"- {func: ./x, inputs: {a: 1}}\n", `j:1:4: func is not supported by this version; use script or exec`},
		"action":                 {"- {action: a/b@v1}\n", `j:1:4: action is not supported by this version; use script or exec`},
		"old dialect":            {"spec:\n---\ntype: steps\nsteps: []\n", `j:3:1: type is not supported by this version; write the steps as run`},
		"step outside a list":    {"name: a\nscript: x\n", `j:1:1: name belongs to a step, and steps stand in a list: write - before it`},
		"run and exec":           {"run: []\nexec: {command: [a]}\n", `j:2:7: the job has both run and exec; a job has one of them`},
		"empty":                  {"", `j: the text is empty; write a list of steps, such as - script: echo hello`},
		"comment only":           {"# nothing\n", `j: the text is empty; write a list of steps, such as - script: echo hello`},
		"empty document":         {"---\n", `j:2:1: there are no steps; write a list of them, such as - script: echo hello`},
		"empty list":             {"run: []\n", `j:1:6: there are no steps; write at least one, such as - script: echo hello`},
		"no run":                 {"env: {A: b}\n", `j:1:1: there are no steps; write run: and below it a list of them`},
		"spec in one document":   {"spec:\nrun: []\n", `j:1:1: spec stands in a document of its own; write --- on a line between it and the rest`},
		"documents out of order": {"run: [{script: x}]\n---\nspec:\n", `j:1:1: unknown key "run"; the first of two documents holds spec, the second run`},
		"spec with inputs":       {"spec: {inputs: {a: {type: string}}}\n---\nrun: []\n", `j:1:1: inputs and outputs in a job's spec are not supported by this version; leave it empty`},
		"three documents":        {"{}\n---\nrun: [{script: x}]\n---\na: b\n", `j:5:1: a job has at most two documents, its spec and its steps; this is a third`},
		"merge key":              {"- &a {script: x}\n- {<<: *a, name: b}\n", `j:2:4: merge keys (<<) are not supported; write the keys out`},
		"tag":                    {"- script: !!binary aGk=\n", `j:1:11: tags are not supported; remove the one that begins with !`},
		"own tag":                {"- script: !reference [a, b]\n", `j:1:11: tags are not supported; remove the one that begins with !`},
		"syntax":                 {"- name: [\n", `j:2:1: not valid YAML: did not find expected node content while parsing a flow node`},
		"unknown anchor":         {"- script: *geheim\n", `j:1:11: not valid YAML: the alias has no anchor before it`},
		"tab":                    {"-\n\tscript: x\n", `j:2:1: not valid YAML: found character that cannot start any token while scanning for the next token`},
		"NUL":                    {"- script: a\x00b\n", `j:1:12: the text holds the control character U+0000; in a double-quoted text it can be written as an escape`},
		"escaped NUL":            {"- script: \"a\\0b\"\n", `j:1:11: the text holds a NUL byte, which no program can be given`},
		"NUL in env":             {"- {script: x, env: {A: \"\\0\"}}\n", `j:1:24: the text holds a NUL byte, which no program can be given`},
		"not UTF-8":              {"- script: äö\xff\n", `j:1:13: the text is not valid UTF-8`},
		"expression":             {"- name: a\n  script: echo ${{ job.X }}\n", `j:2:11: the expression ${{ is not supported by this version; for the text itself write \${{`},
		"expression in a block": {
			"- name: a\n  script: |\n    echo x\n\n    echo ä ${{ job.X\n",
			`j:5:12: the expression ${{ is not supported by this version; for the text itself write \${{`,
		},
		"expression after its escape": {
			"- name: a\n  script: |\n    echo \\${{ a ${{ job.X\n",
			`j:3:17: the expression ${{ is not supported by this version; for the text itself write \${{`,
		},
		"expression in env":      {"- {script: x, env: {A: '${{ b }}'}}\n", `j:1:24: the expression ${{ is not supported by this version; for the text itself write \${{`},
		"expression in a key":    {"- {script: x, env: {'${{ a }}': b}}\n", `j:1:21: the expression ${{ is not supported by this version; for the text itself write \${{`},
		"expression in command":  {"- exec: {command: ['${{ a }}']}\n", `j:1:20: the expression ${{ is not supported by this version; for the text itself write \${{`},
		"expression in work_dir": {"- exec: {command: [a], work_dir: '${{ a }}'}\n", `j:1:34: the expression ${{ is not supported by this version; for the text itself write \${{`},
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
	require.Equal(t, "echo 'Use ${{ to start' ${{ x }}\necho $ $X ${X} $[[ inputs.x ]] }} \\$ \\\\\n", def.Steps[0].Script)
	require.Equal(t, "${{ a }}", def.Steps[0].Env["A"])
	require.Equal(t, []string{"echo", "a${{b"}, def.Steps[1].Exec.Command)
}

func TestParseIsBounded(t *testing.T) {
	t.Run("text over 1 MiB", func(t *testing.T) {
		_, err := Parse("j", []byte("- script: "+strings.Repeat("x", MaxText)))
		require.EqualError(t, err, "j: the text has more than 1 MiB; move scripts into files")
	})
	t.Run("text of almost 1 MiB", func(t *testing.T) {
		def, err := Parse("j", []byte("- script: "+strings.Repeat("x", MaxText-10)))
		require.NoError(t, err)
		require.Len(t, def.Steps[0].Script, MaxText-10)
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
		for _, text := range []string{strings.Repeat("[", MaxText), strings.Repeat("- ", MaxText/2), strings.Repeat("{a: ", 1000)} {
			_, err := Parse("j", []byte(text))
			require.ErrorContains(t, err, "exceeded max depth of 64")
		}
	})
	t.Run("alias bomb", func(t *testing.T) {
		text := "- {script: a, env: {A: &a " + strings.Repeat("x", 1000) + "}}\n" +
			strings.Repeat("- {script: *a, env: {A: *a, B: *a, C: *a}}\n", 9000)
		_, err := Parse("j", []byte(text))
		require.ErrorContains(t, err, "the aliases make this text too large; write the values out")
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

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"run:\n- {name: a, script: echo hi}\n", "{}\n---\nrun: [{exec: {command: [a], work_dir: b}}]\n",
		"- script: |\n    a\n    ${{ b }}\n", "- &a {script: x, env: {A: b}}\n- *a\n", "- script: \"\\0\"\n", "&a [*a]", "- name: [\n",
		"- script: |2\n   ${{\n", "- script: >\n   a ${{\n", "-\r  script: |\r    ${{",
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
		require.NotEmpty(t, def.Steps)
		names := map[string]bool{}
		for _, s := range def.Steps {
			require.True(t, isName(s.Name))
			require.False(t, names[s.Name])
			names[s.Name] = true
			require.NotEqual(t, s.Script == "", s.Exec == nil)
			require.NotContains(t, s.Script, "\x00")
		}
	})
}

func ExampleParse() {
	_, err := Parse("job.yml", []byte("run:\n  - name: build\n    scrpt: make\n"))
	fmt.Println(err)
	// Output: job.yml:3:5: unknown key "scrpt", did you mean "script"?
}
