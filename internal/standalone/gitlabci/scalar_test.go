package gitlabci

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

var update = flag.Bool("update", false, "write the table of scalars by the psych that is installed")

// scalarsFile has rows of a scalar in a file, the Ruby class of its value, and the value as a text.
const scalarsFile = "testdata/scalars.tsv"

// tagOf has the tag for the Ruby class of a value.
var tagOf = map[string]string{
	"NilClass": tagNull, "TrueClass": tagBool, "FalseClass": tagBool, "Integer": tagInt, "Float": tagFloat,
	"String": tagText, "Symbol": tagText,
}

type scalarRow struct{ text, class, value string }

func scalarRows(t testing.TB, table string) (rows []scalarRow) {
	t.Helper()
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, cells, 3, line)
		rows = append(rows, scalarRow{cells[0], cells[1], cells[2]})
	}
	return rows
}

func scalarTable(t testing.TB) []scalarRow {
	t.Helper()
	table, err := os.ReadFile(scalarsFile)
	require.NoError(t, err)
	return scalarRows(t, string(table))
}

// psych returns the table that Ruby makes of these scalars.
func psych(t testing.TB, texts []string, args ...string) (version, table string) {
	t.Helper()
	sshtest.RequirePart(t, "ruby", "/usr/bin/ruby")
	cmd := exec.CommandContext(t.Context(), "/usr/bin/ruby", append([]string{"testdata/psych.rb"}, args...)...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(texts, "\n")+"\n"), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	version, table, _ = strings.Cut(string(out), "\n")
	return version, table
}

// The table is what psych says. To write it: add lines with a scalar, and go test -update.
func TestTheTableOfScalarsIsThatOfPsych(t *testing.T) {
	var texts []string
	old, err := os.ReadFile(scalarsFile)
	require.NoError(t, err)
	for line := range strings.Lines(string(old)) {
		text, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		texts = append(texts, text)
	}
	_, table := psych(t, texts)
	if *update {
		require.NoError(t, os.WriteFile(scalarsFile, []byte(table), 0o644))
	}
	require.Equal(t, table, string(old))
}

// onlySeparators are numbers that psych 4 reads and psych 5, which GitLab has, does not.
var onlySeparators = regexp.MustCompile(`^[-+]?0[bx]?[_,]+$`)

// Random scalars of the characters that make a difference are read as psych reads them.
func TestRandomScalarsAreReadAsPsychReadsThem(t *testing.T) {
	pieces := []string{
		"0", "00", "1", "7", "8", "9", "59", "60", "0x", "0b", "0o", "f", "A", "_", ",", ".", ":", "+", "-", "e", "E", "e+",
		"e-", "~", "y", "yes", "No", "on", "OFF", "true", "null", "inf", "nan", "T", "Z", " ", "é", "'", "2024-", "01", "31",
		"12:30:45", "0.1", "!", "=", "/", "1234567", "000000", ".0", "e+17", "e-5", "1234567890123456", "12345678901234567",
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 20_000 {
		text := ""
		for range 1 + rnd.IntN(6) {
			text += pieces[rnd.IntN(len(pieces))]
		}
		if !onlySeparators.MatchString(text) {
			texts = append(texts, text)
		}
	}
	_, table := psych(t, texts, "plain")
	for _, row := range scalarRows(t, table) {
		requireScalar(t, row)
	}
}

func requireScalar(t testing.TB, row scalarRow) {
	t.Helper()
	tag, value, ok := readScalar(row.text)
	want := scalarRow{row.text, tagOf[row.class], row.value}
	require.Equal(t, want, scalarRow{row.text, tag, value}, row.class)
	require.Equal(t, row.class != "refused", ok, row.text)
}

const filled = "j: {script: [x], variables: {A: '$[[ inputs.a ]]'}}"

// A value without quotes is the one that GitLab's server reads, in every key with scalars: 014 is 12. The spelling was
// kept, so that a job worked here and not there.
//
//stepmux:faults users | A scalar without quotes is another value than on the server; a key given twice is an error
//stepmux:more there and not here, or the other way
//stepmux:with internal/standalone/gitlabci.TestRandomScalarsAreReadAsPsychReadsThem
//stepmux:with internal/standalone/gitlabci.TestTheLastOfTwoKeysCounts
//stepmux:with internal/standalone/gitlabci.TestAQuotedMergeKeyMerges
func TestScalarsAreReadAsGitLabReadsThem(t *testing.T) {
	for _, row := range scalarTable(t) {
		requireScalar(t, row)
		number := row.class == "Integer" || row.class == "Float"
		word := row.class == "String" || row.class == "Symbol"
		boolean := row.class == "TrueClass" || row.class == "FalseClass"
		known := row.class != "refused"
		for key, test := range map[string]struct {
			text  string
			takes bool
		}{
			"variables":       {"variables:\n  A: %s\nj: {script: [x]}", known},
			"of a job":        {"j:\n  script: [x]\n  variables:\n    A: %s", known},
			"value":           {"variables:\n  A:\n    value: %s\n    expand: no\nj: {script: [x]}", known},
			"rules:variables": {"j:\n  script: [x]\n  rules:\n    - variables:\n        A: %s", known},
			"workflow":        {"workflow:\n  rules:\n    - variables:\n        A: %s\nj: {script: [x]}", known},
			"merged":          {".k: &k\n  A: %s\nj: {script: [x], variables: {<<: *k}}", known},
			"matrix": {
				"j:\n  script: [x]\n  parallel:\n    matrix:\n      - A:\n          - %s", word || row.class == "Integer",
			},
			"matrix, alone": {
				"j:\n  script: [x]\n  parallel:\n    matrix:\n      - A: %s", word || row.class == "Integer",
			},
			"text input": {
				"spec:\n  inputs:\n    a:\n      default: %s\n---\nj: {script: [x], variables: {A: '$[[ inputs.a ]]'}}", word,
			},
			"number input": {
				"spec:\n  inputs:\n    a:\n      type: number\n      default: %s\n---\n" + filled, number,
			},
			"boolean input": {
				"spec:\n  inputs:\n    a:\n      type: boolean\n      default: %s\n---\n" + filled,
				boolean,
			},
			"given input": {"include:\n  local: k.yml\n  inputs:\n    n: %s\nj: {script: [x]}", number},
		} {
			text := fmt.Sprintf(test.text, row.text)
			files := project{"k.yml": "spec: {inputs: {n: {type: number}}}\n---\nvariables: {A: '$[[ inputs.n ]]'}\n"}
			mistake := wrong(text, files)
			require.Equal(t, test.takes, mistake == "", "%s: %s: %s", key, text, mistake)
			if !test.takes {
				continue
			}
			j := job(t, text, "j", files)
			require.Equal(t, row.value, values(j)["A"], "%s: %s", key, text)
			require.Equal(t, row.text != row.value, strings.Contains(strings.Join(warnings(j), "\n"), "quote"), "%s: %s %q",
				key, text, warnings(j))
			require.Equal(t, row.text != row.value, len(j.Warnings) > 0, text)
		}
		for _, quoted := range []string{`'%s'`, "|-\n    %s"} {
			if quoted[0] == '\'' && strings.Contains(row.text, "'") {
				continue
			}
			j := job(t, "j:\n  script: [x]\n  variables:\n   A: "+fmt.Sprintf(quoted, row.text), "j")
			require.Equal(t, row.text, values(j)["A"])
			require.Empty(t, j.Warnings)
		}
	}
}

// A warning says how the value is read, and how to keep the text. Each is there once, with its place.
func TestAValueThatIsReadAsAnotherHasAWarning(t *testing.T) {
	file, err := Read("ci.yml", []byte(`
variables: {A: 014, B: yes, C: ~, D: :secret, E: 1e3, F: 12, G: "014"}
.base: {variables: {H: 0x1F}}
j: {extends: .base, run: [{name: a, step: ./b, inputs: {N: 010}}]}
k: {script: [a], image: 1.10}
`), Config{})
	require.NoError(t, err)
	first := []string{
		`ci.yml:2:16: GitLab reads 014 as 12; to keep the text, quote it: "014"`,
		`ci.yml:2:24: GitLab reads yes as true; to keep the text, quote it: "yes"`,
		`ci.yml:2:32: GitLab reads ~ as an empty value; to keep the text, quote it: "~"`,
		`ci.yml:2:38: GitLab removes the colon at the beginning of this text; to keep it, quote the text`,
	}
	for range 2 { // a job says nothing about the one before it
		j, err := file.Job("j")
		require.NoError(t, err)
		require.Equal(t, append(first[:4:4],
			`ci.yml:3:24: GitLab reads 0x1F as 31; to keep the text, quote it: "0x1F"`,
			`ci.yml:4:60: GitLab reads 010 as 8; to keep the text, quote it: "010"`,
		), warnings(j))
		require.Empty(t, j.Notices, "it is told once")
		require.Equal(t, 2, j.Warnings[0].Line)
		k, err := file.Job("k")
		require.NoError(t, err)
		require.Equal(t, append(first[:4:4],
			`ci.yml:5:25: GitLab reads 1.10 as 1.1; to keep the text, quote it: "1.10"`), warnings(k))
	}
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, ", V%d: 0%d", i, i%8)
	}
	j := job(t, "j: {script: [a], variables: {A: b"+many.String()+"}}", "j")
	require.Len(t, j.Warnings, 30)
}

// Symptom: stage: 1.10 was the stage 1.1 without a word, and so in all keys but variables, images and steps.
//
//stepmux:faults users | A key that a job does not use changes its value without a warning
//stepmux:with internal/yamltree.TestADashBeforeACommaOrABracketIsAText
func TestEachKeyWhoseValueIsReadAsAnotherHasAWarning(t *testing.T) {
	const read110, read014 = `GitLab reads 1.10 as 1.1; to keep the text, quote it: "1.10"`,
		`GitLab reads 014 as 12; to keep the text, quote it: "014"`
	const badWhen = "GitLab refuses this value; the key when of a job takes on_success, on_failure, always, manual, " +
		"delayed"
	for keys, want := range map[string]string{
		"stage: 1.10": read110, "tags: [1.10]": read110, "cache: {key: 014}": read014, "environment: 1.10": read110,
		"cache: {key: {prefix: 1.10, files: [a]}}": read110, "artifacts: {paths: [1.10]}": read110, "needs: []": "",
		"artifacts: {name: 014}": read014, "environment: {name: 1.10}": read110, "resource_group: 014": read014,
		"dependencies: [014]": read014, "rules: [{changes: [1.10]}]": read110, "only: [1.10]": read110,
		"stage: on":          `GitLab reads on as true; to keep the text, quote it: "on"`,
		"tags: [~]":          `GitLab reads ~ as an empty value; to keep the text, quote it: "~"`,
		"coverage: :a":       "GitLab removes the colon at the beginning of this text; to keep it, quote the text",
		"when: nope":         badWhen,
		"when: on":           badWhen,
		"interruptible: yes": "", "allow_failure: On": "", "artifacts: {untracked: yes, paths: ['1.10']}": "",
		"retry: 2": "", "timeout: 3600": "", "when: manual": "", "stage: ~": "", "tags: ['014', \"1.10\", 1.2.3]": "",
	} {
		for _, text := range []string{
			"stages: [test, '1.1', 'true']\nj: {script: [x], " + keys + "}",
			"stages: [test, '1.1', 'true']\n.b: {" + keys + "}\nj: {extends: .b, script: [x]}",
		} {
			j := job(t, text, "j")
			if want == "" {
				require.Empty(t, j.Warnings, keys)
				continue
			}
			require.Len(t, j.Warnings, 1, keys)
			require.Equal(t, want, j.Warnings[0].Message, keys)
		}
	}
	for text, want := range map[string]string{
		"stages: [test, 014]":                                        read014,
		"default: {tags: [014]}":                                     read014,
		"cache: {key: 1.10}":                                         read110,
		"workflow: {rules: [{if: $A, when: manual}]}":                "GitLab refuses when: manual in this rule; rules of",
		"include: {local: a, rules: [{when: on_success}]}":           "GitLab refuses when: on_success in this rule; rul",
		"workflow: {rules: [{if: $A, when: never}, {when: always}]}": "",
	} {
		j := job(t, text+"\nj: {script: [x]}", "j", project{"a": "{k: {script: [x]}}"})
		if want == "" {
			require.Empty(t, j.Warnings, text)
			continue
		}
		require.Len(t, j.Warnings, 1, text)
		require.Contains(t, j.Warnings[0].Message, want)
	}
}

// Names are texts for GitLab, too: a job called on would be called true there, and is refused.
func TestNamesMustBeTexts(t *testing.T) {
	for text, want := range map[string]string{
		"on: {script: [a]}\nj: {script: [a]}": `ci.yml:1:1: the name of a job must be a text, and GitLab does not read ` +
			`this as one; quote it: "on"`,
		"014: {script: [a]}":                                           `ci.yml:1:1: the name of a job must be a text`,
		"j: {script: [a], variables: {NO: b}}":                         `ci.yml:1:30: the name of a variable must be a text`,
		"j: {script: [a], variables: {1.1: b}}":                        `ci.yml:1:30: the variable name "1.1" is not valid`,
		"\"on\": {script: [a]}\nj: {script: [a]}":                      "",
		"j: {script: [a], variables: {\"NO\": b}}":                     "",
		"j: {script: [no]}":                                            "ci.yml:1:14: a line of script must be a text",
		"variables: {A: {value: a, expand: 'no'}}\nj: {script: [a]}":   "ci.yml:1:35: expand is true or false",
		"variables: {A: {value: 1, options: [1]}}\nj: {script: [a]}":   `ci.yml:1:37: an option of "A" must be a text`,
		"variables: {A: {value: a, options: [b]}}\nj: {script: [a]}":   `the value of "A" must be one of its`,
		"j: {script: [a], parallel: {matrix: [{A: ''}]}}":              `the variable "A" of matrix has no value`,
		"j: {script: [a], parallel: {matrix: [{A: []}]}}":              `the variable "A" of matrix has no value`,
		"j: {script: [a], rules: [{if: $A}, {variables: {A: [b]}}]}":   `the value of "A" must be a text or a number`,
		"j: {script: [a], artifacts: {paths: [2024-01-02]}}\n":         `GitLab refuses a file with a date`,
		"j: {script: [a], variables: {A: 2024-01-02 10:11:12 +1}}\n":   `quote it: "2024-01-02 10:11:12 +1"`,
		"j: {script: [a], variables: {A: '2024-01-02', B: 2024-13-1}}": "",
	} {
		if mistake := wrong(text, nil); want == "" {
			require.Empty(t, mistake, text)
		} else {
			require.Contains(t, mistake, want, text)
		}
	}
}

// Of a key that is given twice, the last value counts, with a warning, as in GitLab. It was an error.
func TestTheLastOfTwoKeysCounts(t *testing.T) {
	file, err := Read("ci.yml", []byte(`
spec: {inputs: {a: {default: A}}}
---
variables: {A: first, B: b, A: second}
j: {script: [a]}
j:
  script: [b]
  script: [c]
  run:
  variables: {"$[[ inputs.a ]]": third, B: c, A: fourth}
k: {script: [d]}
`), Config{})
	require.NoError(t, err)
	j, err := file.Job("k")
	require.NoError(t, err)
	require.Equal(t, []Variable{{"A", "second"}, {"B", "b"}}, j.Variables[len(j.Variables)-2:])
	require.Len(t, j.Warnings, 4)
	require.Equal(t, `ci.yml:4:29: the key "A" is given twice: as in GitLab, this one counts, and the one before it has `+
		`no effect`, j.Warnings[0].Error())
	require.Equal(t, []int{4, 8, 6, 10}, []int{
		j.Warnings[0].Line, j.Warnings[1].Line, j.Warnings[2].Line, j.Warnings[3].Line,
	})
	for _, err := range file.Check(nil) {
		require.ErrorContains(t, err, "both run and script")
	}
}

// The key of a merge may be quoted, as in GitLab: psych looks at its text only.
func TestAQuotedMergeKeyMerges(t *testing.T) {
	for _, key := range []string{"<<", `"<<"`, `'<<'`} {
		j := job(t, ".k: &k {A: 014, B: k}\nj: {script: [a], variables: {B: j, "+key+": *k, A: j}}", "j")
		require.Equal(t, "j", values(j)["A"], key)
		require.Equal(t, "k", values(j)["B"], key)
	}
	require.Contains(t, wrong(".k: &k {A: b}\nj: {script: [a], variables: {!!str <<: *k}}", nil), "variable name")
}

// psych and this package agree on the mappings of a file: keys that are given twice, and merge keys.
func TestMappingsAreThoseOfPsych(t *testing.T) {
	sshtest.RequirePart(t, "ruby", "/usr/bin/ruby")
	var texts []string
	for _, a := range []string{"A: 1", `"<<": *k`, "<<: *k", "<<: [*l, *k]", "B: 2"} {
		for _, b := range []string{"A: 3", `'<<': *l`, "<<: *k", "C: 4", "<<: [*k, *l]"} {
			for _, c := range []string{"A: 5", "B: 6", "<<: *l", "A: 7"} {
				texts = append(texts, a+", "+b+", "+c)
			}
		}
	}
	const anchors = ".k: &k {A: k, B: k}\n.l: &l {A: l, C: l, A: m}\n"
	cmd := exec.CommandContext(t.Context(), "/usr/bin/ruby", "-ryaml", "-e", `STDIN.each_line { |text|
		j = YAML.safe_load(`+fmt.Sprintf("%q", anchors)+` + "j: {#{text.chomp}}", aliases: true)["j"]
		puts j.map { |k, v| "#{k}=#{v}" }.join(" ")
	}`)
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(texts, "\n")+"\n"), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	want := strings.Split(string(bytes.TrimSpace(out)), "\n")
	require.Len(t, want, len(texts))
	for i, text := range texts {
		var got []string
		j := job(t, anchors+"j: {script: [a], variables: {"+text+"}}", "j")
		for _, v := range j.Variables {
			if len(v.Name) == 1 {
				got = append(got, v.Name+"="+v.Value)
			}
		}
		require.Equal(t, want[i], strings.Join(got, " "), text)
	}
}
