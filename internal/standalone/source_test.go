package standalone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestFormatIsThatOfTheNameUnlessItIsSaid(t *testing.T) {
	for _, test := range []struct {
		text, name string
		want       Format
	}{
		{"", "steps.yml", Steps},
		{"", "a/.gitlab-ci.yml", GitLabCI},
		{"", "ci/test.gitlab-ci.yml", GitLabCI},
		{"steps", ".gitlab-ci.yml", Steps},
		{"gitlab-ci", "x", GitLabCI},
		{"", "a/.github/workflows/test.yml", GitHub},
		{"github", "x", GitHub},
	} {
		got, err := ParseFormat(test.text, test.name)
		require.NoError(t, err)
		require.Equal(t, test.want, got, test)
	}
	_, err := ParseFormat("jenkins", "x")
	require.EqualError(t, err, `format "jenkins": use steps, gitlab-ci or github`)
}

const withInputs = `spec:
  inputs:
    who: {type: string}
    times: {type: number, default: 1}
    tags: {type: array, default: []}
    loud: {type: boolean, default: false}
---
run:
  - name: a
    exec: {command: [echo, "${{ inputs.who }}", "${{ inputs.times + 1 }}", "${{ inputs.tags }}", "${{ inputs.loud }}"]}
`

func TestInputsAreValuesAndNeverText(t *testing.T) {
	tr := newTrial(t)
	inputs := map[string]string{
		"who": "a\"\n  - script: echo ${{ injected }}", "times": "2", "tags": `["x"]`,
		"loud": "true",
	}
	tr.finish(tr.read(Source{Name: "s.yml", Text: []byte(withInputs), Format: Steps, Inputs: inputs}))
	require.Equal(t, "a\"\n  - script: echo ${{ injected }} 3 [\"x\"] true\n", tr.stdout.String())
}

// In a checkout, github.sha and github.ref were empty, and a step for the branch main was skipped on main.
func TestWorkflowKnowsTheCommitOfItsDirectory(t *testing.T) {
	const text = "on: push\njobs:\n  t:\n    steps:\n      - run: echo $GITHUB_SHA ${{ github.ref }} $GITHUB_REF_NAME " +
		"$GITHUB_REF_TYPE ${{ vars.CI_COMMIT_TITLE }}.\n"
	src := Source{Name: "w.yml", Text: []byte(text), Format: GitHub, Predefined: []gitlabci.Variable{
		{Name: "CI_COMMIT_SHA", Value: "abc"},
		{Name: "CI_COMMIT_BRANCH", Value: "main"},
		{Name: "CI_COMMIT_REF_NAME", Value: "main"},
		{Name: "CI_COMMIT_TITLE", Value: "left out"},
	}}
	tr := newTrial(t)
	tr.finish(tr.read(src))
	src.Vars = []engine.Variable{{Key: "GITHUB_REF", Value: "refs/tags/v1"}}
	tr.finish(tr.read(src))
	require.Equal(t, "abc refs/heads/main main branch .\nrefs/tags/v1 v1 tag .\n", tr.stdout.String())
}

// actions/checkout would have deleted the user's uncommitted work or, for another repository, the whole project.
func TestCheckoutDoesNotReplaceTheProject(t *testing.T) {
	const text = "on: push\njobs:\n  t:\n    steps:\n      - {id: c, uses: actions/checkout@v4, with: {%s}}\n" +
		"      - run: cat file; echo ${{ steps.c.outcome }}\n"
	for with, want := range map[string]string{
		"fetch-depth: 0":                           "",
		"repository: '${{ github.repository }}'":   "",
		"path: '${{ github.workspace }}/'":         "",
		"repository: other/one":                    "would delete all files in WORK; give it a path",
		"repository: other/one, path: sub/..":      "would delete all files in WORK; give it a path",
		"path: sub":                                "would delete all files in WORK/sub; give it a path",
		"path: new":                                "fetch the action actions/checkout@v4",
		"path: earlier, repository: other/another": "fetch the action actions/checkout@v4",
	} {
		tr := newTrial(t)
		tr.cfg.Actions.Base, tr.cfg.CacheDir = t.TempDir(), fetchtest.CacheDir(t)
		tr.file("file", "mine\n")
		tr.file("sub/file", "mine\n")
		tr.file("earlier/.git/HEAD", "ref: refs/heads/main\n")
		report := tr.finish(tr.read(Source{Name: "w.yml", Text: fmt.Appendf(nil, text, with), Format: GitHub}))
		if want != "" {
			require.Contains(t, report.Message, strings.ReplaceAll(want, "WORK", tr.cfg.WorkDir), with)
			continue
		}
		require.Equal(t, "mine\nsuccess\n", tr.stdout.String(), "%s: %s", with, report.Message)
		require.Equal(t, []string{"actions/checkout@v4 did not run: the job uses the files of the directory as they are"},
			report.Steps[0].Steps[0].Warnings)
	}

	tr := newTrial(t) // an empty directory has nothing to lose
	tr.cfg.Actions.Base, tr.cfg.CacheDir = t.TempDir(), fetchtest.CacheDir(t)
	report := tr.finish(tr.read(Source{Name: "w.yml", Text: fmt.Appendf(nil, text, ""), Format: GitHub}))
	require.Contains(t, report.Message, "fetch the action actions/checkout@v4")
}

// The version 3.10 became 3.1.
// The texts in a value of the matrix in JSON were read as expressions of steps.
func TestValuesOfAMatrixAreNeverExpressions(t *testing.T) {
	tr := newTrial(t)
	const text = "jobs:\n  t:\n    strategy: ${{ vars.S }}\n    steps:\n      - run: " +
		"echo \"${{ matrix.a }} ${{ matrix.b.c[0] }} ${{ matrix.d }}\"\n" +
		"        shell: cat {0}\n"
	matrix := map[string]string{"a": "${{ x }}", "b": `{"c": ["\\${{ y }}"]}`, "d": `"$\u007b{ z }}"`}
	tr.finish(tr.read(Source{Name: "w.yml", Text: []byte(text), Format: GitHub, Matrix: matrix}))
	require.Equal(t, `echo "${{ x }} \${{ y }} ${{ z }}"`, tr.stdout.String())

	tr = newTrial(t)
	on := strings.ReplaceAll("on: {workflow_dispatch: {inputs: {a: {}, b: {}, d: {}}}}\n"+text, "matrix.", "inputs.")
	on = strings.Replace(on, "b.c[0]", "b", 1)
	tr.finish(tr.read(Source{Name: "w.yml", Text: []byte(on), Format: GitHub, Inputs: matrix}))
	require.Equal(t, `echo "${{ x }} {"c": ["\\${{ y }}"]} "$\u007b{ z }}""`, tr.stdout.String())
	tr = newTrial(t)
	const event = `on: {workflow_dispatch: {inputs: {dry: {type: boolean}}}}
jobs:
  t:
    steps:
      - run: |
          echo '${{ inputs.dry }} ${{ github.event.inputs.dry == 'false' }} ${{ github.event.ref }}'
          grep -o '"dry": "false"' "$GITHUB_EVENT_PATH"
`
	tr.finish(tr.read(Source{Name: "w.yml", Text: []byte(event), Format: GitHub, Vars: []engine.Variable{
		{Key: "GITHUB_REF", Value: "refs/heads/main"},
	}}))
	require.Equal(t, "false true refs/heads/main\n\"dry\": \"false\"\n", tr.stdout.String())
	_, err := Read(Source{Name: "w.yml", Text: []byte(text), Format: GitHub, Inputs: matrix})
	require.ErrorContains(t, err, "w.yml: the workflow has no input")
}

func TestVersionsInAMatrixKeepTheirDigits(t *testing.T) {
	tr := newTrial(t)
	const text = "on: push\njobs:\n  t:\n    strategy: ${{ vars.S }}\n    steps:\n      - run: echo " +
		"${{ matrix.a }} ${{ matrix.b == 1.26 }} " +
		"${{ matrix.c && 1 || 0 }} ${{ matrix.d[1] }}\n"
	matrix := map[string]string{"a": "3.10", "b": "1.26", "c": "false", "d": `[1, 2]`}
	tr.finish(tr.read(Source{Name: "w.yml", Text: []byte(text), Format: GitHub, Matrix: matrix}))
	require.Equal(t, "3.10 true 0 2\n", tr.stdout.String())
}

func TestInputsThatDoNotFitAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		inputs map[string]string
		err    string
	}{
		"missing":  {nil, `s.yml: the input "who" is required, and not given`},
		"misspelt": {map[string]string{"whoo": "x"}, `s.yml: the step takes no input "whoo", did you mean "who"?`},
		"other type": {
			map[string]string{"who": "x", "times": `"2"`},
			`s.yml: input "times": the value is a string, and must be a number`,
		},
		"not JSON": {
			map[string]string{"who": "x", "times": "two"},
			`input "times": the value must be JSON, as 3, true or ["a"], since its type is number`,
		},
		"not a string": {
			map[string]string{"who": "x", "loud": "yes"},
			`input "loud": the value must be JSON, as 3, true or ["a"], since its type is boolean`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(Source{Name: "s.yml", Text: []byte(withInputs), Format: Steps, Inputs: test.inputs})
			require.EqualError(t, err, test.err)
		})
	}
	_, err := Read(Source{
		Name: "ci.yml", Text: []byte("j: {script: [a]}"), Format: GitLabCI,
		Inputs: map[string]string{"a": "b"}, WorkDir: t.TempDir(),
	})
	require.EqualError(t, err, "ci.yml: the file has no spec, and so takes no inputs")
}

func TestJSONIsReadAsItStands(t *testing.T) {
	tr := newTrial(t)
	tr.finish(tr.read(Source{Name: "--json", Format: JSON, Text: []byte(
		`[{"exec":{"command":["printf","%s|","\ud83d\ude00","\\ud83d\\ude00","a\/b","\u00e4\tb","x\ny"]}}]`)}))
	require.Equal(t, "\U0001f600|\\ud83d\\ude00|a/b|\u00e4\tb|x\ny|", tr.stdout.String())
}

func TestInvalidJSONIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`run: [{script: a}]`: "--json: not valid JSON, at byte 1: invalid character 'r' looking for beginning " +
			"of value",
		`[{"script":"a"}] - b`:        "--json: not valid JSON, at byte 18: invalid character '-' after top-level value",
		``:                            "--json: not valid JSON, at byte 0: unexpected end of JSON input",
		`[{"scrpt":"a"}]`:             `--json:1:3: unknown key "scrpt", did you mean "script"?`,
		`[{"script":"a","script":1}]`: `--json:1:16: the key "script" is given twice`,
	} {
		_, err := Read(Source{Name: "--json", Format: JSON, Text: []byte(text)})
		require.EqualError(t, err, want)
	}
}

func TestJobIsChosenByName(t *testing.T) {
	read := func(text, job string) error {
		_, err := Read(Source{Name: "ci.yml", Text: []byte(text), Format: GitLabCI, JobName: job, WorkDir: t.TempDir()})
		return err
	}
	require.NoError(t, read("only: {script: [a]}\n.base: {script: [b]}\n", ""))
	const two = "one: {script: [a]}\ntwo: {script: [b]}\n"
	require.NoError(t, read(two, "two"))
	require.EqualError(t, read(two, ""), `ci.yml has 2 jobs; choose one with --job-name: "one", "two"`)
	require.EqualError(t, read(".one: {script: [x]}\n", ""),
		"ci.yml has no job that can run: their names all begin with a dot") // it said: choose one of 0
	require.EqualError(t, read(two, "tow"), `ci.yml: there is no job "tow", did you mean "two"?`)
	require.EqualError(t, read(two, "deploy"), `ci.yml: there is no job "deploy"; there is "one", "two"`)
	_, err := Read(Source{Name: "s.yml", Text: []byte("- script: a"), Format: Steps, JobName: "j"})
	require.EqualError(t, err, `job "j": a list of steps has no jobs; the formats gitlab-ci and github have`)
}

// exists and include with wildcards found files that GitLab does not have, such as those in node_modules.
func TestFilesThatGitIgnoresAreNoFilesOfTheProject(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"node_modules/a/ci.yml", "src/ci.yml", "src/out.yml"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		text := strings.ReplaceAll(strings.TrimSuffix(name, ".yml"), "/", "-") + ": {script: [x]}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const text = "include: '**/*.yml'\na:\n  script: [a]\n  rules:\n" +
		"    - {exists: [node_modules/**/*, src/out.yml], variables: {FOUND: ignored}}\n" +
		"    - {exists: ['**/ci.yml'], variables: {FOUND: ours}}\n"
	src := Source{
		Name: ".gitlab-ci.yml", Text: []byte(text), Format: GitLabCI, WorkDir: dir,
		Ignored: func() ([]string, error) { return []string{"node_modules/", "src/out.yml", ""}, nil },
	}
	require.Equal(t, []string{"src-ci", "a"}, JobNames(src))
	src.JobName = "a"
	j, err := Read(src)
	require.NoError(t, err)
	require.Equal(t, "ours", j.Env["FOUND"])
}

func TestIncludedFilesAreFoundInTheWorkDirectoryAndNotBeyond(t *testing.T) {
	tr := newTrial(t)
	tr.file("ci/jobs.yml", "j: {script: [echo included]}\n")
	tr.finish(tr.read(Source{Name: "ci.yml", Format: GitLabCI, Text: []byte("include: /ci/jobs.yml\n")}))
	require.Equal(t, "$ echo included\nincluded\n", tr.stdout.String())
	_, err := Read(Source{
		Name: "ci.yml", Format: GitLabCI, WorkDir: tr.cfg.WorkDir,
		Text: []byte("include: ../../etc/passwd\nj: {script: [a]}\n"),
	})
	require.EqualError(t, err,
		fmt.Sprintf(`ci.yml:1:10: include: read "../../etc/passwd": the work directory %s has no such file`, tr.cfg.WorkDir))
}

// Symptom: the error about a file in the place of the directory for includes did not name it, and did not come at all
// if nothing was included from there.
func TestDirectoriesOfIncludesAreOpenedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for dir, why := range map[string]string{file: "not a directory", file + "s": "no such file or directory"} {
		src := Source{Name: "ci.yml", Format: GitLabCI, Text: []byte("j: {script: [a]}\n"), WorkDir: dir}
		_, err := Read(src)
		require.EqualError(t, err, fmt.Sprintf("open work directory: open %s: %s", dir, why))
		src.WorkDir, src.Includes = t.TempDir(), dir
		_, err = Read(src)
		require.EqualError(t, err, fmt.Sprintf("open directory for includes: open %s: %s", dir, why))
	}
}

func TestVariablesAreThoseOfTheEnvironment(t *testing.T) {
	vars, err := EnvironmentVars([]string{
		"CI_COMMIT_SHA=abc", "STEPS=- a", "STEPMUX_TOKEN=t", "CI_JOB_TOKEN=secret", "MY=x=y", "BASH_FUNC_f%%=() {",
		"MY=twice", "nothing",
	}, []string{"MY"})
	require.NoError(t, err)
	require.Equal(t, []engine.Variable{
		{Key: "CI_COMMIT_SHA", Value: "abc"},
		{Key: "CI_JOB_TOKEN", Value: "secret", Masked: true},
		{Key: "MY", Value: "x=y", Masked: true},
	}, vars)
	_, err = EnvironmentVars([]string{"MY=x"}, []string{"MX"})
	require.ErrorContains(t, err, "there is none of the name in the --mask with the number")
	require.NotContains(t, err.Error(), "MX")
}

func TestVariablesOfTheCommandLine(t *testing.T) {
	lookup := func(name string) (string, bool) { return "from outside", name == "HOME" }
	vars, err := Vars([]string{"A=1", "HOME", "A=2=3", "E="}, []string{"HOME"}, lookup)
	require.NoError(t, err)
	require.Equal(t,
		[]engine.Variable{{Key: "HOME", Value: "from outside", Masked: true}, {Key: "A", Value: "2=3"}, {Key: "E"}}, vars)
	vars, err = Vars([]string{"GITHUB_TOKEN=x", "CI_JOB_TOKEN=y"}, nil, lookup)
	require.NoError(t, err)
	require.Equal(t, []engine.Variable{
		{Key: "GITHUB_TOKEN", Value: "x", Masked: true}, {Key: "CI_JOB_TOKEN", Value: "y", Masked: true},
	}, vars, "these hold secrets")
	for text, want := range map[string]string{
		"1A=x": `--var: the variable name "1A" is not valid; write NAME=VALUE, or NAME for its value in the environment`,
		"OTHER": "--var: the variable OTHER is not in the environment; export it, or write OTHER=VALUE if " +
			"it is no secret",
	} {
		_, err := Vars([]string{text}, nil, lookup)
		require.EqualError(t, err, want)
	}
	_, err = Vars(nil, []string{"GONE"}, lookup)
	require.ErrorContains(t, err, "there is none of the name in the --mask with the number")
	require.NotContains(t, err.Error(), "GONE")
	_, err = Vars([]string{"A=other", "TOKEN=geheim"}, []string{"TOKEN", "geheim"}, lookup)
	require.EqualError(t, err, "--mask takes the name of a variable, not its value: write --mask TOKEN")
	_, err = Inputs([]string{"novalue"})
	require.EqualError(t, err, `the input "novalue" is not valid; write name=value`)
}

// Symptom: in a directory that is reached by a link, include with wildcards and exists of rules found no file.
func TestFilesOfAWorkDirectoryThatIsALinkAreFound(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ci"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ci", "base.yml"), []byte(".base: {script: [echo]}\n"), 0o600))
	require.NoError(t, os.Symlink(dir, link))
	_, err := Read(Source{
		Name: ".gitlab-ci.yml", Format: GitLabCI, WorkDir: link,
		Text: []byte("include: 'ci/*.yml'\ntest: {extends: .base}\n"),
	})
	require.NoError(t, err)
}
