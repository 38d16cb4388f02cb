package gitlabci

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestMistakesAreSaidWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"": "ci.yml: the file is empty; write a job: a name, and below it script: or " +
			"run:",
		"- a": "ci.yml:1:1: the file must be a mapping of jobs, not a list; for a list " +
			"of steps use the format steps",
		"stages: [a]": "ci.yml: the file has no job; a job is a name at the start of a line, " +
			"and below it script: or run:",
		"j: 3": `ci.yml:1:1: the job "j" must be a mapping with script: or run:, not a ` +
			`number; put it in quotes`,
		"j: {stage: a}":                        `ci.yml:1:1: the job "j" has nothing to run; give it a script or a run`,
		"j: {script: }":                        `ci.yml:1:1: the job "j" has nothing to run; give it a script or a run`,
		"j: {script: []}":                      "ci.yml:1:13: script is empty; write the commands for the shell",
		"j: {script: [a], run: [{script: a}]}": `ci.yml:1:5: the job "j" has both run and script; a job has one of them`,
		"j: {run: [{script: a}], after_script: [a]}": `ci.yml:1:25: the job "j" has both run and after_script; a job has ` +
			`one of them`,
		"j: {scripts: [a]}": `ci.yml:1:5: unknown key "scripts", did you mean "script"?`,
		"j: {bananas: [a]}": `ci.yml:1:5: unknown key "bananas"; a job has no such key`,
		"j: {script: [1]}": "ci.yml:1:14: a line of script must be a text, not a number; " +
			"put it in quotes",
		"j: {script: [a, a: b]}":             "ci.yml:1:17: a line of script must be a text, not a mapping",
		"j: {script: !secret [a]}":           "ci.yml:1:13: the tag is not supported; remove the word that begins with !",
		"j: {extends: k, script: [a]}":       `ci.yml:1:14: extends: there is no job "k"`,
		"j: {extends: {a: b}, script: [a]}":  "ci.yml:1:14: extends takes the name of a job, or a list of names",
		".k: [a]\nj: {extends: .k}":          `ci.yml:2:14: extends: ".k" is a list, not a job`,
		"j: {extends: j, script: [a]}":       `ci.yml:1:14: extends: the job "j" extends itself, by way of j > j`,
		"j: {extends: .k}\n.k: {extends: j}": `ci.yml:2:15: extends: the job "j" extends itself, by way of j > .k > j`,
		"j: {script: [!reference [.k, x]]}":  `ci.yml:1:14: !reference: there is no ".k x"`,
		"j: {script: !reference []}": "ci.yml:1:13: !reference is empty; write the job and its key, such as !reference " +
			"[.setup, script]",
		"j: {script: !reference [[a]]}":       "ci.yml:1:13: !reference takes names, such as !reference [.setup, script]",
		"j: {script: !reference [j, script]}": `ci.yml:1:13: !reference: "j script" leads back to itself`,
		"j: {variables: [a], script: [a]}":    "ci.yml:1:16: variables must be a mapping (NAME: value), not a list",
		"j: {variables: {A B: a}, script: [a]}": `ci.yml:1:17: the variable name "A B" is not valid; use letters, digits ` +
			`and _, not a digit first`,
		"j: {variables: {A: [a]}, script: [a]}":       `ci.yml:1:20: the value of "A" must be a text or a number, not a list`,
		"j: {variables: {A: {valu: a}}, script: [a]}": `ci.yml:1:21: unknown key "valu", did you mean "value"?`,
		"j: {variables: {A: {x: a}}, script: [a]}": `ci.yml:1:21: unknown key "x"; a variable has value, ` +
			`description, options, expand`,
		"j: {inherit: false, script: [a]}": "ci.yml:1:14: inherit must be a mapping with default and variables, not true " +
			"or false; put it in quotes",
		"j: {inherit: {defaults: false}, script: [a]}": `ci.yml:1:15: unknown key "defaults", did you mean ` +
			`"default"?`,
		"j: {inherit: {default: {}}, script: [a]}": "ci.yml:1:24: inherit: default takes true, false or a list of names",
		"workflow: {ruels: []}\nj: {script: [a]}": `ci.yml:1:12: unknown key "ruels", did you ` +
			`mean "rules"?`,
		"workflow: [a]\nj: {script: [a]}":               "ci.yml:1:11: workflow must be a mapping, not a list",
		"j: {run: a}":                                   "ci.yml:1:10: run must be a list of steps, not a text",
		"j: {run: [{name: a, script: b, wen: always}]}": `ci.yml:1:32: unknown key "wen", did you mean "when"?`,
		"j: {run: [{name: a, script: 'echo ${{ vras.X }}'}]}": `ci.yml:1:39: step "a": script: vras was not found; did ` +
			`you mean vars?`,
		"include: {project: a/b, file: c}\nj: {extends: .k, script: [a]}": `ci.yml:2:14: extends: there is no job ".k"; it ` +
			`may be in a file that this one includes from elsewhere (project "a/b" "c"): save such files in a directory, ` +
			`and name it by --includes`,
		"include: {project: a/b}\nj: {script: [a]}": "ci.yml:1:11: include: project needs file, the path of a file there",
		"include: https://x.test/a.yml\nk: {script: [a]}": `ci.yml: there is no job "j"; there is "k"; it may be in a file ` +
			`that this one includes from elsewhere (remote "https://x.test/a.yml"): save such files in a directory, and ` +
			`name it by --includes`,
		"include: {template: A.yml}\nj: {script: [!reference [.k, x]]}": `ci.yml:2:14: !reference: there is no ".k x"; it ` +
			`may be in a file that this one includes from elsewhere (template "A.yml"): save such files in a directory, and ` +
			`name it by --includes`,
		"include: {lcal: a}\nj: {script: [a]}": `ci.yml:1:11: unknown key "lcal"; use local`,
		"include: [[a]]\nj: {script: [a]}": "ci.yml:1:11: include takes the path of a file of this project, such as - " +
			"local: ci/jobs.yml",
		"include: $DIR/a.yml\nj: {script: [a]}": "ci.yml:1:10: include: a variable in this path has no value; give it " +
			"one by --var",
		"include: gone.yml\nj: {script: [a]}": `ci.yml:1:10: include: read "gone.yml": file does not exist`,
		"include: ./ci.yml\nj: {script: [a]}": `ci.yml:1:10: include: the file "./ci.yml" includes itself`,
		"include: a.yml\nj: {script: [a]}":    `b.yml:1:11: include: the file "/a.yml" includes itself`,
		"a: b\n---\nj: {script: [a]}": "ci.yml:3:1: the file has one document, after one with a spec; this is " +
			"one too many",
		"j: {variables: {RUNNER_SCRIPT_TIMEOUT: soon}, script: [a]}": "ci.yml:1:55: the variable RUNNER_SCRIPT_TIMEOUT " +
			"must be a time above 0, such as 90s, 5m or 1h30m",
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, want, wrong(text, project{"a.yml": "include: [b.yml]", "b.yml": "include: [/a.yml]"}))
		})
	}
}

// bombs are small files that expand to large ones.
func bombs() map[string]string {
	aliases := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	extends := ".e0: {variables: {A: b}}\n"
	references := ".r0: {s: [a]}\n"
	vars := "variables:\n  V0: xxxxxxxxxx\n"
	for i := 1; i <= 9; i++ {
		aliases += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10))
		extends += fmt.Sprintf(".e%d: {extends: [%s]}\n", i, strings.Repeat(fmt.Sprintf(".e%d, ", i-1), 10))
		references += fmt.Sprintf(".r%d: {s: [%s]}\n", i, strings.Repeat(fmt.Sprintf("!reference [.r%d, s], ", i-1), 10))
		vars += fmt.Sprintf("  V%d: '%s'\n", i, strings.Repeat(fmt.Sprintf("$V%d", i-1), 10))
	}
	return map[string]string{
		"aliases":    aliases + "j: {script: [a]}\n",
		"extends":    extends + "j: {extends: .e9, script: [a]}\n", // cheap: each job is extended once
		"references": references + "j: {script: !reference [.r9, s]}\n",
		"variables":  vars + "j: {script: [a]}\n",
		"itself":     "j: &j {script: [*j]}\n",
		"deep":       "j: {script: " + strings.Repeat("[", 63) + strings.Repeat("]", 63) + "}\n",
	}
}

func TestBombsDoNotGoOff(t *testing.T) {
	racefree.Only(t)
	for name, text := range bombs() {
		t.Run(name, func(t *testing.T) {
			file, err := Read("ci.yml", []byte(text), Config{})
			if err == nil {
				_, err = file.Job("j")
				require.LessOrEqual(t, file.tree.Cost, maxCost+1<<20)
			}
			if name == "extends" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
		})
	}
}

// Symptom: a script of eleven lists in each other was taken, which GitLab refuses.
func TestListsOfAScriptAreNestedAsDeepAsInGitLab(t *testing.T) {
	for _, key := range []string{"before_script", "script", "after_script"} {
		nested := func(lists int) string {
			list := strings.Repeat("[", lists) + "a" + strings.Repeat("]", lists)
			return wrong(".base: {script: [a]}\nj: {extends: .base, "+key+": "+list+"}\n", nil)
		}
		require.Empty(t, nested(10))
		require.Contains(t, nested(11), key+" is nested deeper than 10")
	}
}

func TestManyFilesAreRefused(t *testing.T) {
	text := "include: [" + strings.Repeat("a.yml, ", maxIncludes+1) + "]\nj: {script: [a]}\n"
	require.Contains(t, wrong(text, project{"a.yml": "variables: {}"}), "include: there are more than 150 files")
}

func FuzzRead(f *testing.F) {
	racefree.Only(f) // inputs are large
	for _, text := range bombs() {
		f.Add(text)
	}
	f.Add("include: a.yml\ndefault: {setup: [{script: a}]}\nvariables: {A: $B, B: ${A}}\n" +
		"j: {extends: .b, script: [!reference [.b, script]]}\n.b: &b {script: [a], teardown: [{script: b}]}\n" +
		"k: {<<: *b, after_script: c}\n")
	f.Add(component + "j: {script: [$A], only: ['/a/i@b', tags], except: {variables: [$A], changes: [a]}}\n")
	f.Add("j: {run: [{name: a, step: ./b, inputs: {c: 1}}], inherit: {default: [run]}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Read("ci.yml", []byte(text), project{"a.yml": "i: {script: [a]}"}.config())
		if err != nil {
			requirePlaced(t, err)
			return
		}
		for _, err := range file.Check(nil) {
			requirePlaced(t, err)
		}
		for _, name := range file.Jobs() {
			if j, err := file.Job(name); err == nil {
				require.NotEmpty(t, j.Definition.GetSteps())
			}
		}
	})
}

// requirePlaced requires that err has a place, and is one line.
func requirePlaced(t *testing.T, err error) {
	t.Helper()
	bad := (*lang.Error)(nil)
	require.True(t, errors.As(err, &bad), "%v", err)
	require.NotEmpty(t, bad.Where)
	require.NotContains(t, err.Error(), "\n")
}

// A job that starts another pipeline is legal, though only a server can run it; validate refused the file. Stages and
// needs that do not exist passed, and GitLab refuses the file.
func TestCheckUsesTheStagesAndJobsOfThePipeline(t *testing.T) {
	const usual = ` the stage "nosuch", which does not exist; there are ".pre", "build", "test", "deploy", ".post"`
	for text, want := range map[string]string{
		"a: {script: [x]}\nb: {trigger: {include: child.yml}, stage: deploy, needs: [a]}\n": "",
		"a: {script: [x], stage: tset}\n": `.gitlab-ci.yml:1:25: the job "a" has the stage "tset", which does not ` +
			`exist, did you mean "test"?`,
		"stages: [one, two]\na: {script: [x], stage: three}\n": `.gitlab-ci.yml:2:25: the job "a" has the stage "three", ` +
			`which does not exist; there are ".pre", "one", "two", ".post"`,
		"stages: [one, two]\na: {script: [x]}\n": `.gitlab-ci.yml:2:1: the job "a" has no stage, and "test" does not ` +
			`exist; there are ".pre", "one", "two", ".post"`,
		"stages: [one]\na: {script: [x], stage: .pre}\nb: {script: [x], stage: one}\n": "",
		"a: {script: [x], needs: [bb]}\nb: {script: [x]}\n": `.gitlab-ci.yml:1:26: the job "a" needs "bb", and there is ` +
			`no such job`,
		"a: {script: [x], needs: [{job: build-ap}]}\nbuild-app: {script: [x]}\n": `.gitlab-ci.yml:1:32: the job "a" ` +
			`needs "build-ap", and there is no such job, did you mean "build-app"?`,
		"a: {script: [x], needs: [{job: bb, optional: true}]}\n":                      "",
		"a: {script: [x], needs: [{pipeline: $P, job: bb}, {project: p, job: cc}]}\n": "",
		"a: {script: [x], needs: []}\n":                                               "",
		"stages: !reference [.s]\n.s: [one]\na: {script: [x], stage: one}\n":          "",

		"t: {script: [x], needs: [t]}\n": `.gitlab-ci.yml:1:1: the job needs itself, directly or by others: "t" needs "t"; ` +
			`remove one of these from needs`,
		"z: {script: [x], needs: [a]}\na: {script: [x], needs: [{job: b}]}\nb: {script: [x], needs: [c, d]}\n" +
			"d: {script: [x]}\nc: {script: [x], needs: [{job: a, optional: true}]}\n": `.gitlab-ci.yml:2:1: the job needs ` +
			`itself, directly or by others: "a" needs "b" needs "c" needs "a"; remove one of these from needs`,
		"p: {script: [x], parallel: 2, needs: [q]}\nq: {script: [x], needs: ['p 1/2']}\n": `.gitlab-ci.yml:1:1: the job ` +
			`needs itself, directly or by others: "p" needs "q" needs "p"; remove one of these from needs`,
		".h: {script: [x]}\na: {script: [x], needs: [.h]}\n":                                "",
		"a: {script: [x], needs: [b, c]}\nb: {script: [x], needs: [c]}\nc: {script: [x]}\n": "",

		"a: {trigger: other/project, stage: nosuch}\n":               `.gitlab-ci.yml:1:36: the job "a" has` + usual,
		".base: {stage: nosuch}\na: {extends: .base, script: [x]}\n": `.gitlab-ci.yml:1:16: the job "a" has` + usual,
	} {
		f, err := Read(".gitlab-ci.yml", []byte(text), Config{})
		require.NoError(t, err, text)
		var got []string
		for _, err := range f.Check(nil) {
			got = append(got, err.Error())
		}
		require.Equal(t, want, strings.Join(got, "\n"), text)
	}
}

// Names of jobs, stages, inputs and files were left out of an error if they had other characters than letters, digits,
// "-._" and blanks: "extends: there is no job". Names in lists within needs were not looked up at all.
//
//stepmux:faults users | An error does not name its object, or hides the reason behind that of the layer beneath
//stepmux:with internal/boundedzip.TestEntryOutsideTheArchiveIsADamagedArchive
//stepmux:with instance/manager.TestTheEndOfALeaseIsNamed
func TestErrorsNameTheirObjectWhateverItsName(t *testing.T) {
	const job = "j: {script: [x]}\n"
	for text, want := range map[string]string{
		"j: {extends: 'build:linux', script: [x]}":         `extends: there is no job "build:linux"`,
		"j: {extends: ['.b(x)', .k], script: [x]}":         `extends: there is no job ".b(x)"`,
		"'a+b': [x]\nj: {extends: a+b}":                    `extends: "a+b" is a list, not a job`,
		"'j:1': {extends: 'j:1', script: [x]}":             `extends: the job "j:1" extends itself`,
		"j: {script: [!reference ['.a:b', script]]}":       `!reference: there is no ".a:b script"`,
		job + "'k:1': {needs: ['build:app'], script: [x]}": `the job "k:1" needs "build:app", and there is no such job`,
		job + "k: {needs: [{job: 'übung'}], script: [x]}":  `the job "k" needs "übung", and there is no such job`,
		job + "k: {needs: [[j, ['t:u']]], script: [x]}":    `the job "k" needs "t:u", and there is no such job`,
		job + "k: {needs: [[j]], script: [x]}":             "",
		job + ".n: {needs: [j, 'a:b']}\nk: {needs: [!reference [.n, needs]], script: [x]}": `the job "k" needs "a:b", and ` +
			`there is no such job`,
		"j: {stage: 'a:b', script: [x]}":    `the job "j" has the stage "a:b", which does not exist`,
		"j: {stage: [test], script: [x]}":   `the stage of the job "j" must be a name, not a list`,
		"stages: [[test]]\n" + job:          "stages takes names, not a list",
		"'a:b': 3":                          `the job "a:b" must be a mapping`,
		"'a:b': {stage: test}":              `the job "a:b" has nothing to run`,
		"'a:b': {script: [x], run: []}":     `the job "a:b" has both run and script`,
		"a/b: {script: [x]}\na/b: {}":       `the job "a/b" has nothing to run`,
		"'a:b': {rules: [], only: [x]}":     `the job "a:b" has both rules and only`,
		"include: {local: 'ci/a:b.yml'}":    `include: read "ci/a:b.yml"`,
		"include: {local: 'ci/$V.yml'}":     `include: read: `,
		"j: {script: [x], 'before:all': }":  `unknown key "before:all"; a job has no such key`,
		"j: {script: [x], 'curl -u a:b': }": `unknown key; a job has no such key`,

		"spec: {inputs: {'a:b': {type: number, default: x}}}\n---\n" + job: `the input "a:b" takes a number, not a text`,
		"spec: {inputs: {a: }}\n---\nj: {script: ['$[[ inputs.c:d ]]']}":   `the spec of the file has no input "c:d"`,
	} {
		open := func(string) ([]byte, error) { return nil, fs.ErrNotExist }
		f, err := Read("ci.yml", []byte(text), Config{Open: open, Given: []Variable{{"V", "s3cret=x"}}})
		got := []error{err}
		if err == nil {
			got = f.Check(nil)
		}
		err = errors.Join(got...)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "s3cret")
	}
	f, err := Read("ci.yml", []byte(job), Config{})
	require.NoError(t, err)
	_, err = f.Job("build:linux")
	require.EqualError(t, err, `ci.yml: there is no job "build:linux"; there is "j"`)
	_, err = f.Job(strings.Repeat("x:", 1000))
	require.Less(t, len(err.Error()), 200)
}

// Each job extends the next one many times. After the first mistake, here of the cost, no job is merged any more.
func TestAMistakeEndsTheWork(t *testing.T) {
	racefree.Only(t)
	var text strings.Builder
	for i := range 10 {
		fmt.Fprintf(&text, "j%d: {script: [x], extends: [%s]}\n", i, strings.Repeat(fmt.Sprintf("j%d, ", i+1), 30))
	}
	text.WriteString("j10:\n")
	for i := range 40_000 {
		fmt.Fprintf(&text, "  k%d: 1\n", i)
	}
	f, err := Read("ci.yml", []byte(text.String()), Config{})
	require.NoError(t, err)
	_, err = f.Job("j0")
	require.ErrorContains(t, err, "aliases and other repeated parts make this text too large")
}
