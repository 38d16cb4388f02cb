package gitlabci

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
)

func TestParallelJobsAreSeveralBuilds(t *testing.T) {
	file, err := Read("ci.yml", []byte(`
one: {script: [a]}
five: {script: [a], parallel: 5}
"job: [x]": {script: [a]}
test:
  variables: {OS: none, B: "$OS/$ARCH"}
  parallel:
    matrix:
      - {OS: linux, ARCH: [amd64, arm64]}
      - {OS: [mac], ARCH: arm64, N: 1}
  script: [a]
`), Config{})
	require.NoError(t, err)
	require.Equal(t, []string{"one", "five", "job: [x]", "test"}, file.Jobs())
	for name, want := range map[string]string{
		"one": "one", "job: [x]": "job: [x]",
		"five": "five 1/5; five 2/5; five 3/5; five 4/5; five 5/5", "five 4/5": "five 4/5",
		"test":                  "test: [linux, amd64]; test: [linux, arm64]; test: [mac, arm64, 1]",
		"test: [mac, arm64, 1]": "test: [mac, arm64, 1]", "test 2/3": "test: [linux, arm64]",
	} {
		names, err := file.Builds(name)
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(names, "; "), name)
	}
	j, err := file.Job("test: [linux, arm64]")
	require.NoError(t, err)
	v := values(j)
	require.Equal(t, []string{"linux", "arm64", "linux/arm64", "2", "3", "test: [linux, arm64]"},
		[]string{v["OS"], v["ARCH"], v["B"], v["CI_NODE_INDEX"], v["CI_NODE_TOTAL"], v["CI_JOB_NAME"]})
	j, err = file.Job("one")
	require.NoError(t, err)
	require.NotContains(t, values(j), "CI_NODE_TOTAL")

	j, err = file.Job("five")
	require.NoError(t, err)
	v = values(j)
	require.Equal(t, []string{"1", "1", "five"}, []string{v["CI_NODE_INDEX"], v["CI_NODE_TOTAL"], v["CI_JOB_NAME"]})
	require.Equal(t, []string{`the job runs once and whole; its parts (parallel) are called "five 1/5" and so on`},
		j.Notices)

	for name, want := range map[string]string{
		"test": `the job "test" has 3 builds (parallel), and the name must choose one: "test: [linux, amd64]", ` +
			`"test: [linux, arm64]", "test: [mac, arm64, 1]"`,
		"test: [linux]": `the job "test" has 3 builds`, "five 6/5": `the job "five" has 5 builds`,
		"one 1/2": `the job "one" has 1 build (parallel)`,
		"six 1/6": `there is no job "six 1/6"; there is "one"`,
	} {
		_, err := file.Job(name)
		require.ErrorContains(t, err, want)
	}
	file.cfg.Matrix = map[string]string{"ARCH": "arm64", "OS": "linux"}
	j, err = file.Job("test")
	require.NoError(t, err)
	require.Equal(t, "test: [linux, arm64]", j.Name)
	names, err := file.Builds("test")
	require.NoError(t, err)
	require.Equal(t, []string{"test: [linux, arm64]"}, names)
	file.cfg.Matrix = map[string]string{"ARCH": "arm64"}
	_, err = file.Job("test")
	require.ErrorContains(t, err, "the name must choose one")
	_, err = file.Job("five")
	require.ErrorContains(t, err, `the job "five" has no matrix`)
}

func TestMistakesInParallel(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("a, ", 15), ", ")
	for parallel, want := range map[string]string{
		"0":   "ci.yml:1:28: parallel takes a number from 1 to 200, or matrix",
		"201": "parallel takes", "[1]": "parallel takes",
		"{matrx: []}":          `unknown key "matrx", did you mean "matrix"?`,
		"{matrix: a}":          "matrix must be a list of mappings",
		"{matrix: [a]}":        "an entry of matrix must be a mapping (NAME: [value, value]), not a text",
		"{matrix: [{A: {}}]}":  `a value of matrix must be a text or a whole number, not a mapping`,
		"{matrix: [{A B: c}]}": `the variable name "A B" is not valid`,
		fmt.Sprintf("{matrix: [{A: [%s], B: [%[1]s], C: [%[1]s]}]}", many): "matrix has more than 200 combinations",
	} {
		require.Contains(t, wrong("j: {script: [a], parallel: "+parallel+"}", nil), want, parallel)
	}
}

// Reading must not take time in proportion to the square of the number of jobs.
func TestAFileMayHaveManyJobs(t *testing.T) {
	racefree.Only(t)
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "job-%d: {script: [make %d], needs: [{job: job-%d, optional: true}], stage: test}\n", i, i, i+1)
	}
	file, err := Read("ci.yml", []byte(text.String()), Config{})
	require.NoError(t, err)
	require.Len(t, file.Jobs(), 10_000)
	require.Empty(t, file.Check(nil))
	j, err := file.Job("job-9999")
	require.NoError(t, err)
	require.Equal(t, "make 9999", script(j))
}

func TestATriggerIsToldAndRunsNothing(t *testing.T) {
	j := job(t, "j: {trigger: {include: child.yml}, needs: [], rules: [{when: always}]}", "j")
	require.Len(t, j.Definition.GetSteps(), 1)
	require.Equal(t, "false", j.Definition.GetSteps()[0].GetCondition())
	require.Equal(t, []string{
		"not done here, but by a server or runner: needs",
		"the job starts another pipeline (trigger), which is not possible here: nothing runs",
	}, j.Notices)
}

func TestAProjectElsewhereIsTheWorkDirectory(t *testing.T) {
	file, err := Read("ci.yml", []byte(`
variables: {CACHE: "$CI_PROJECT_DIR/.cache/${{ x }}", PLAIN: "$$ {{ }}"}
j: {script: [a], after_script: [b], image: "x:$CI_PROJECT_DIR"}
`), Config{})
	require.NoError(t, err)
	j, err := file.Job("j")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"CI_JOB_NAME": "j", "CI_JOB_STAGE": "test", "PLAIN": "$ {{ }}"}, values(j))
	for _, s := range j.Definition.GetSteps() {
		require.Equal(t, "${{ work_dir }}", s.GetEnv()["CI_PROJECT_DIR"])
		require.Equal(t, `${{ work_dir }}/.cache/\${{ x }}`, s.GetEnv()["CACHE"])
	}
	require.Contains(t, string(j.Container), "$CI_PROJECT_DIR")
}

// An error about values for the matrix names the one that is not there, and lists those that are. It only said how many
// builds the job has.
//
//stepmux:faults users | A value for a matrix that it does not have is unclear, or taken
//stepmux:with remote/step/action.TestValuesThatTheMatrixOfAWorkflowDoesNotHaveAreTold
func TestValuesThatAMatrixDoesNotHaveAreTold(t *testing.T) {
	const text = "j: {script: [a], parallel: {matrix: [{OS: [linux, mac], ARCH: [x, y]}, {OS: bsd, N: 014}]}}\n" +
		"k: {script: [a]}\n"
	for want, given := range map[string]map[string]string{
		`the matrix of the job "j" has no value "windows" of OS; there is "linux", "mac", "bsd"`: {"OS": "windows"},
		`the matrix of the job "j" has no value "014" of N; there is "12"`:                       {"N": "014"},
		`the matrix of the job "j" has no variable "ARHC", did you mean "ARCH"?`:                 {"ARHC": "x"},
		`the matrix of the job "j" has no variable "VERSION"; it has "ARCH", "N", "OS"`:          {"VERSION": "1"},
		`the matrix of the job "j" does not have these values together; its builds are "j: [linux, x]", "j: [linux, y]", ` +
			`"j: [mac, x]", "j: [mac, y]", "j: [bsd, 12]"`: {"OS": "bsd", "ARCH": "x"},
		`2 builds of the job "j" have these values of its matrix; give more values, or the name must choose one: ` +
			`"j: [linux, x]", ` +
			`"j: [linux, y]"`: {"OS": "linux"},
	} {
		file, err := Read("ci.yml", []byte(text), Config{Matrix: given})
		require.NoError(t, err)
		_, err = file.Job("j")
		require.EqualError(t, err, "ci.yml:1:1: "+want)
		_, err = file.Builds("j")
		require.EqualError(t, err, "ci.yml:1:1: "+want)
		_, err = file.Job("k")
		require.EqualError(t, err, `ci.yml:2:1: the job "k" has no matrix`)
	}
}
