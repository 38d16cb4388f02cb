package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// writer is a job of the step w, which has the outputs in spec and runs script: a shell script that finds
// its files in $OUT and $EXP.
func writer(t testing.TB, spec, script string) *trial {
	t.Helper()
	return newTrial(t, "- {name: w, step: ./w}\n").files(map[string]string{
		"w/step.yml": "spec:\n  outputs: " + spec + "\n---\nenv: {OUT: '${{ output_file }}', EXP: '${{ export_file }}'}\n" +
			"exec: {command: [sh, '${{ step_dir }}/run.sh']}\n",
		"w/run.sh": script,
	})
}

func TestOutputsAreReadAsJSONLines(t *testing.T) {
	res := writer(
		t,
		"{s: {type: string}, n: {type: number}, b: {type: boolean}, o: {type: struct}, l: {type: array}, d: {type: "+
			"string, default: preset}}",
		`cat > "$OUT" <<'END'

  {"name":"s","value":"first"}
{ "name" : "s" , "value" : " ${{ x }} ß\n" }
{"name":"n","value":12.5}
{"name":"b","value":false}
{"name":"o","value":{"a":[1,null,{"b":"c"}]}}
END
printf '{"name":"l","value":["x",null]}' >> "$OUT"
`,
	).succeed()
	got := res.Steps[0].Outputs
	require.Equal(t, map[string]any{
		"s": " ${{ x }} ß\n", "n": 12.5, "b": false, "d": "preset",
		"o": map[string]any{"a": []any{1.0, nil, map[string]any{"b": "c"}}}, "l": []any{"x", nil},
	}, anyOf(got))
}

func TestOutputFileThatIsWrongNamesTheLine(t *testing.T) {
	const spec = "{v: {type: string}, n: {type: number, default: 0}}"
	for script, want := range map[string]string{
		`echo hello`: `read output file: line 1: the line must be JSON such as ` +
			`{"name":"version","value":"1.2"}`,
		`echo v=x`: `read output file: line 1: the line must be JSON such as ` +
			`{"name":"version","value":"1.2"}`,
		`printf '\n{"name"::1}'`: `read output file: line 2: the line is not JSON such as ` +
			`{"name":"version","value":"1.2"}: invalid character ':' looking for beginning of value`,
		`echo '{"name":"v","value":"x"} x'`: `read output file: line 1: the line is not JSON such as ` +
			`{"name":"version","value":"1.2"}: something follows it`,
		`echo '{"name":"v"'`: `read output file: line 1: the line is not JSON such as ` +
			`{"name":"version","value":"1.2"}: the JSON ends too early`,
		`echo '{"value":"x"}'`:             `read output file: line 1: "name" is missing`,
		`echo '{"name":"v"}'`:              `read output file: line 1: "value" is missing`,
		`echo '{"name":null,"value":"x"}'`: `read output file: line 1: "name" is null`,
		`echo '{"name":"v","value":null}'`: `read output file: line 1: "value" is null`,
		`echo '{"name":"","value":"x"}'`:   `read output file: line 1: "name" is empty`,
		`echo '{"name":1,"value":"x"}'`:    `read output file: line 1: "name" is not a string`,
		`echo '{"name":"v","value":"x","typ":1}'`: `read output file: line 1: "typ" is unknown; a value has "name" ` +
			`and "value"`,
		`printf '{"name":"v","value":"\377"}'`: `read output file: the text is not valid UTF-8`,
		`echo '{"name":"w","value":"x"}'`: "unexpected output \"w\": the spec has n, v; missing output \"v\": " +
			"the step did not give it, and it has no default",
		`echo '{"name":"v","value":"x"}{"name":"n"}'`: `read output file: line 1: the line is not JSON such as ` +
			`{"name":"version","value":"1.2"}: something follows it`,
		`true`:                          `missing output "v": the step did not give it, and it has no default`,
		`echo '{"name":"v","value":1}'`: `output "v": the value is a number, and must be a string`,
		`echo '{"name":"v","value":{"name":"v"}}'`: `output "v": the value is a struct, and must be a string`,
		deepValue(65): `read output file: line 1: "value" of "v": the value is nested deeper than 64`,
		`seq 10001 | sed 's/.*/{"name":"v","value":"&"}/'`: `read output file: line 10001: there are more than 10000 values`,
	} {
		t.Run(script, func(t *testing.T) {
			res := writer(t, spec, "("+script+") > \"$OUT\"\n").fail(`step "w": ` + want)
			require.Zero(t, res.ExitCode)
		})
	}
}

func deepValue(levels int) string {
	return `echo '{"name":"v","value":` + strings.Repeat("[", levels) + strings.Repeat("]", levels) + `}'`
}

func TestStepsWithoutOutputsCannotGiveAny(t *testing.T) {
	newTrial(t, `- {name: w, script: 'echo "{\"name\":\"v\",\"value\":1}" > ${{ output_file }}'}`).
		fail(`step "w": unexpected output "v": the spec has no outputs`)
}

// Lines beyond 64 KiB used to be where readers of lines stop, in silence.
//
//stepmux:faults engine | An output or export over 64 KiB is dropped, with all later ones, without an error
//stepmux:with remote/step/engine.TestOutputFileHasALimit
func TestOutputsAndExportsMayHaveLongLines(t *testing.T) {
	res := writer(t, "{v: {type: string}, w: {type: string}}", `
x=$(head -c 100000 /dev/zero | tr '\0' x)
printf '{"name":"v","value":"%s%s"}\n{"name":"w","value":"after"}\n' "$x" "$x" > "$OUT"
printf '{"name":"V","value":"%s"}\n{"name":"W","value":"after"}\n' "$x" > "$EXP"
`).succeed()
	require.Len(t, res.Steps[0].Outputs["v"].Text(), 200_000)
	require.Equal(t, "after", res.Steps[0].Outputs["w"].Text())
	require.Len(t, res.Exports["V"].Text(), 100_000)
	require.Equal(t, "after", res.Exports["W"].Text())
}

func TestOutputFileHasALimit(t *testing.T) {
	writer(t, "{}", `head -c 8388609 /dev/zero > "$OUT"`).
		fail(`step "w": read output file: the file has 8388609 bytes, the limit is 8388608; pass large data in a file of ` +
			`the project`)
	writer(t, "{}", `head -c 9000000000 /dev/zero | head -c 20000000 > "$EXP"`).
		fail(`step "w": read export file: the file has 20000000 bytes, the limit is 8388608; pass large data in a file of ` +
			`the project`)
}

func TestOutputsOfAllStepsAreBoundedTogether(t *testing.T) {
	racefree.Only(t)
	tr := writer(
		t,
		"{v: {type: string}}",
		`(printf '{"name":"v","value":"'; head -c 8000000 /dev/zero | tr '\0' x; echo '"}') > "$OUT"`,
	)
	tr.files(map[string]string{"all/step.yml": "{}\n---\nrun:\n" + func() (list string) {
		for i := range 6 {
			list += fmt.Sprintf("- {name: s%d, step: ../w}\n", i)
		}
		return list
	}()})
	tr.cfg.Definition.Steps[0].Reference.Path = "./all"
	res := tr.fail(
		`step "w": step "s4": the outputs, exports and saved states of the job's steps have more than 33554432 bytes in ` +
			`all; pass large data in files`,
	)
	require.Nil(t, res.Steps[0].Steps[4].Outputs)
}

func TestOutputFileThatWasReplacedIsNotRead(t *testing.T) {
	for script, want := range map[string]string{
		`rm "$OUT"`:                           "the step has removed it; write to the file that is there",
		`rm -r "$(dirname "$OUT")"`:           "the step has removed it; write to the file that is there",
		`rm "$OUT"; ln -s /etc/hostname $OUT`: "the step has replaced it by a symbolic link; write to the file that is there",
		`rm "$OUT"; mkdir "$OUT"`: "the step has replaced it by something that is no regular file; write to " +
			"the file that is there",
		`rm "$OUT"; mkfifo "$OUT"`: "the step has replaced it by something that is no regular file; write to " +
			"the file that is there",
		`ln -sf /dev/zero "$OUT"`: "the step has replaced it by a symbolic link; write to the file that is there",
	} {
		t.Run(script, func(t *testing.T) {
			res := writer(t, "{}", script).run()
			require.Equal(t, Failure, res.Status)
			require.Contains(t, res.Message, `step "w": read output file: `+want)
		})
	}
}

func TestFilesOfAStepArePrivateAndItsOwn(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: 'stat -c %a "${{ output_file }}" "${{ export_file }}" "$(dirname ${{ output_file }})"; echo ${{
    output_file }} > a'}
- {name: b, script: '[ "$(cat a)" != ${{ output_file }} ] && [ ! -e "$(cat a)" ] && echo other'}
`)
	tr.succeed()
	require.Equal(t, "600\n600\n700\nother\n", tr.stdout.String())
}

func TestFilesOfAStepAreMadeOnlyIfItKnowsTheirPaths(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: 'ls $DIR', env: {DIR: "${{ vars.DIR }}"}}
- {name: b, exec: {command: [sh, -c, 'ls $DIR']}, env: {DIR: "${{ vars.DIR }}", OUT: "${{ output_file }}"}}
- {name: c, script: 'ls $DIR', env: {DIR: "${{ vars.DIR }}"}}
`)
	tr.cfg.Vars = []Variable{{Key: "DIR", Value: tr.place.ScriptDir}}
	tr.succeed()
	require.Equal(t, "script\nstep-2\nscript\n", tr.stdout.String())
}

func TestOutputsOfAFailedStepAreKeptAndItsExportsAreNotPassedOn(t *testing.T) {
	tr := newTrial(t, `
- {name: w, step: ./w}
- {name: after, script: 'echo "[$E] ${{ steps.w.outputs.v }} ${{ steps.w.exports.E }} ${{ steps.w.status }}"',
    when: always}
`).files(map[string]string{
		"w/step.yml": `
spec: {outputs: {v: {type: string}, missing: {type: string}}}
---
exec: {command: [sh, -c, 'echo "{\"name\":\"v\",\"value\":\"1\"}" > ${{ output_file }}; echo
    "{\"name\":\"E\",\"value\":\"2\"}" > ${{ export_file }}; exit 4']}
`,
	})
	res := tr.fail(`step "w": exec: exit status 4`)
	require.Equal(t, "1", res.Steps[0].Outputs["v"].Text())
	require.Equal(t, "[] 1 2 failure\n", tr.stdout.String())
	require.Empty(t, res.Exports)
}

//stepmux:faults engine | Inside a nested sequence an export does not replace an existing variable
func TestExportsReachAllStepsAfter(t *testing.T) {
	tr := newTrial(t, `
- {name: a, step: ./export, inputs: {name: FOO, value: first}}
- {name: nest, step: ./nest}
- {name: b, script: 'echo "after $FOO ${{ env.FOO }} ${{ steps.nest.exports.FOO }}"'}
- {name: c, script: 'echo "own $FOO"', env: {FOO: own}}
`, func(c *Config) { c.Env = map[string]string{"FOO": "request"} }).files(map[string]string{
		"export/step.yml": `
spec: {inputs: {name: {type: string}, value: {type: string}}}
---
exec: {command: [sh, -c, 'printf "{\"name\":\"%s\",\"value\":\"%s\"}\n" "$1" "$2" > ${{ export_file }}; echo
    "during $FOO"', sh, "${{ inputs.name }}", "${{ inputs.value }}"]}
`,
		"nest/step.yml": `
{}
---
run:
  - {name: before, script: 'echo "nested $FOO"'}
  - {name: x, step: ../export, inputs: {name: FOO, value: second}}
  - {name: y, script: 'echo "nested $FOO"'}
`,
	})
	res := tr.succeed()
	require.Equal(
		t,
		"during request\nnested first\nduring first\nnested second\nafter second second second\nown own\n",
		tr.stdout.String(),
	)
	require.Equal(t, "second", res.Exports["FOO"].Text())
}

func TestExportsAreTexts(t *testing.T) {
	res := writer(t, "{}", `cat > "$EXP" <<'END'
{"name":"N","value":56.99}
{"name":"I","value":1e21}
{"name":"B","value":false}
{"name":"S","value":""}
END
`).succeed()
	require.Equal(
		t,
		map[string]any{"N": "56.99", "I": "1000000000000000000000", "B": "false", "S": ""},
		anyOf(res.Exports),
	)
	for script, want := range map[string]string{
		`echo '{"name":"L","value":[1]}'`: `export "L": the value is of type array; only a string, a number ` +
			`or a boolean can be exported`,
		`echo '{"name":"L","value":{}}'`: `export "L": the value is of type struct; only a string, a number ` +
			`or a boolean can be exported`,
		`echo '{"name":"a-b","value":"x"}'`: `export "a-b": the variable name "a-b" is not valid; use letters, ` +
			`digits and _, not a digit first`,
		`echo '{"name":"A","value":"\u0000"}'`: `export "A": the value holds a NUL byte, which no program can be ` +
			`given`,
		`echo '{"name":"L","value":1}{"name":"M"}'`: `read export file: line 1: the line is not JSON such as ` +
			`{"name":"version","value":"1.2"}: something follows it`,
		`printf '{"name":"L","value":"%0131072d"}' 7 `: `export "L": the variable has 131074 bytes, at most 131071 can be ` +
			`passed; put it into a file`,
	} {
		writer(t, "{}", script+` > "$EXP"`).fail(`step "w": ` + want)
	}
}

func TestCommandCanGiveTheResultOfAnotherStep(t *testing.T) {
	tr := newTrial(
		t,
		"- {name: d, step: ./d}\n- {name: e, script: 'echo ${{ steps.d.outputs.o.k }}'}\n",
	).files(map[string]string{
		"d/step.yml": "spec: {outputs: delegate}\n---\nexec: {command: [cp, '${{ step_dir }}/r.json', '${{ output_file " +
			"}}']}\n",
		"d/r.json": `{"status":"success", "outputs":{"a":"b","o":{"k":[1]}}}`,
	})
	res := tr.succeed()
	require.Equal(t, "b", res.Steps[0].Outputs["a"].Text())
	require.Equal(t, "[1]\n", tr.stdout.String())

	res = newTrial(t, "- {name: d, step: ./d}\n").files(map[string]string{
		"d/step.yml": "spec: {outputs: delegate}\n---\nexec: {command: [sh, -c, 'echo not-json > ${{ output_file }}']}\n",
	}).run()
	require.Contains(t, res.Message, `step "d": read output file: it must be the result of a step`)
}

func TestEntriesOfTheBlueprintAreReadAsAShellWould(t *testing.T) {
	got, err := parseEntries(
		[]byte(
			"a=1\n# comment\nb=\"two \\\"words\\\" \\$ \\\\ \\n\"\nc=x=y\nd='as \"it\" is'\ne=\n"+
				"{\"name\":\"f\",\"value\":[1]}\n",
		),
		true,
	)
	require.NoError(t, err)
	require.Equal(
		t,
		map[string]any{"a": "1", "b": "two \"words\" $ \\ \n", "c": "x=y", "d": `as "it" is`, "e": "", "f": []any{1.0}},
		anyOf(got),
	)
	for text, want := range map[string]string{
		"Code Coverage = 95.4%\n": `line 1: the line must be NAME=value, or JSON such as {"name":"version","value":"1.2"}`,
		"a=1\nb=\"x\n":            "line 2: the quote is not closed",
		"a='":                     "line 1: the quote is not closed",
	} {
		_, err := parseEntries([]byte(text), true)
		require.EqualError(t, err, want)
	}
}

func FuzzParseEntries(f *testing.F) {
	for _, seed := range []string{"{\"name\":\"a\",\"value\":[1,{\"b\":null}]}\n", "a=1\nb=\"x\"\n", "#\n\n{", "a='"} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, v0 bool) {
		got, err := parseEntries(data, v0)
		if err != nil {
			require.Less(t, len(err.Error()), 1000)
			return
		}
		for name, v := range got {
			require.NotEmpty(t, name)
			require.NotEqual(t, expr.Null, v.Kind())
		}
	})
}

func TestFilesThatStayBehindGoWithTheNextStep(t *testing.T) {
	tr := newTrial(
		t,
		`- {name: a, script: 'mkdir -p "$(dirname ${{ output_file }})/x/y"; chmod 500 "$(dirname ${{ output_file }})"'}`,
	)
	tr.succeed()
	entries, err := os.ReadDir(filepath.Clean(tr.place.ScriptDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}
