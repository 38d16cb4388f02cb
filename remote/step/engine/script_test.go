package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestScriptsRunInBash(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("part missing: bash")
	}
	tr := newTrial(t, `- script: 'b=(x y z); echo "n=${#b[@]} last=${b[2]}"'`)
	require.Equal(t, Success, tr.run().Status)
	require.Equal(t, "n=3 last=z\n", tr.stdout.String())
}

// onlyIn makes a directory that has of all programs only those named.
func onlyIn(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir
}

func TestScriptsRunInShWithoutBash(t *testing.T) {
	path := onlyIn(t, "sh")
	tr := newTrial(
		t,
		`- script: 'echo "shell=${BASH_VERSION-none} PATH=$PATH"'`,
		func(c *Config) { c.Env = map[string]string{"PATH": path} },
	)
	require.Equal(t, Success, tr.run().Status)
	require.True(t, strings.HasSuffix(tr.stdout.String(), "PATH="+path+"\n"))
}

func TestScriptsNeedAShell(t *testing.T) {
	path := onlyIn(t)
	res := newTrial(t, `- {name: a, script: echo hi}`, func(c *Config) { c.Env = map[string]string{"PATH": path} }).run()
	require.Equal(t, `step "a": no shell: neither bash nor sh is in the step's PATH: exit status 127`, res.Message)
	require.Equal(t, 127, res.ExitCode)
}

func TestShellIsLookedUpRelativeToTheWorkDir(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", "bash"), nil, 0o644)) // not executable
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", "sh"), nil, 0o755))
	got, err := shell("", dir, []string{"PATH=/no/such:bin"})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "bin", "sh"), got)
}

//stepmux:faults service | A script over 128 KiB cannot be executed
//stepmux:with remote/job/service.TestRunTakesALargeScriptAndALargeEnvironment
func TestScriptMayBeLongerThanAnArgument(t *testing.T) {
	tr := newTrial(t, "- script: placeholder", func(c *Config) {
		c.Definition.Steps[0].Inputs["script"] = structpb.NewStringValue(
			strings.Repeat("# 64 bytes of comment, a line as long as this one is: 64 bytes..\n", 20<<20/64) + "echo end\n",
		)
	})
	require.Equal(t, Success, tr.run().Status)
	require.Equal(t, "end\n", tr.stdout.String())
}

func TestScriptFileIsPrivate(t *testing.T) {
	tr := newTrial(t, `- script: stat -c %a "${BASH_SOURCE[0]}"; dirname "${BASH_SOURCE[0]}"; echo "$0 $#"`)
	require.Equal(t, Success, tr.run().Status)
	require.Equal(t, "600\n"+tr.place.ScriptDir+"\nbash 0\n", tr.stdout.String())
}

func TestScriptThatCannotBeWrittenFailsTheStep(t *testing.T) {
	tr := newTrial(t, "- {name: r, exec: {command: [rmdir, '${{ vars.DIR }}']}}\n- {name: a, script: echo hi}")
	tr.cfg.Vars = []Variable{{Key: "DIR", Value: tr.place.ScriptDir}}
	res := tr.Run(t.Context(), tr.place)
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, `step "a": create script: `)
	require.Contains(t, res.Message, "no such file or directory")

	place := tr.place // the directory is gone
	tr = newTrial(t, "- {name: r, script: echo hi}\n- {name: a, script: echo hi}")
	res = tr.Run(t.Context(), place)
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, "open the directory for scripts: ")
	require.True(t, res.System)
	require.Equal(t, []string{"r skipped", "a skipped"}, statuses(res.Steps))
}

// Symptom: the file system was read-only when a step ended, so its script stayed, and the next step failed because of
// it.
func TestScriptOfAnEarlierStepThatCouldNotBeRemovedIsReplaced(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: echo hi}")
	left := filepath.Join(tr.place.ScriptDir, "script")
	require.NoError(t, os.WriteFile(left, []byte("echo old"), 0o644))
	require.Equal(t, Success, tr.run().Status)
	require.Equal(t, "hi\n", tr.stdout.String())
	require.NoFileExists(t, left)
}

// unmarked returns the output of env without the lines by which package proc finds processes.
func unmarked(text string) string {
	return regexp.MustCompile(`(?m)^STEPMUX_(SERVER|COMMAND)=.*\n`).ReplaceAllString(text, "")
}

func TestEnvironmentIsMadeOfLayers(t *testing.T) {
	tr := newTrial(t, `
env: {SEQUENCE: sequence, BOTH: sequence, REQUEST: sequence}
run:
  - {name: a, script: 'echo "$PASSED $TZ $OS $REQUEST $SEQUENCE $BOTH $STEP"', env: {BOTH: step, STEP: step, LANG: C}}
  - {name: b, script: 'echo "$BOTH [$STEP]"'}
  - {name: c, exec: {command: [env]}}
`, func(c *Config) {
		c.RunnerEnv = append(c.RunnerEnv, "TZ=UTC", "SECRET_TOKEN=leak", "LANG=xx", "CI_JOB_TOKEN=leak")
		c.Env = map[string]string{"PASSED": "request", "REQUEST": "request", "TZ": "Europe/Berlin", "BOTH": "request"}
	})
	require.Equal(t, Success, tr.run().Status)
	require.NotContains(t, tr.stdout.String(), "leak")
	lines := strings.SplitN(unmarked(tr.stdout.String()), "\n", 3)
	require.Equal(t, "request Europe/Berlin  sequence sequence step step", lines[0])
	require.Equal(t, "sequence []", lines[1])
	require.Equal(t, strings.Join([]string{
		"BOTH=sequence", "LANG=xx", "PASSED=request", "PATH=" + os.Getenv("PATH"), "REQUEST=sequence", "SEQUENCE=sequence",
		"TZ=Europe/Berlin", "",
	}, "\n"), lines[2])
}

func TestEnvironHasAPathInAnyCase(t *testing.T) {
	require.Equal(t, []string{"PATH=" + defaultPath}, environ(osLayer([]string{"GOPATH=x", "odd"}, passing{})))
	require.Equal(t, []string{"PATH="}, environ(osLayer([]string{"PATH="}, passing{})))
}

func TestDefinitionIsNotChangedByARun(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: 'true', env: {A: b}}")
	before, err := lang.Parse("job.yml", []byte("- {name: a, script: 'true', env: {A: b}}"))
	require.NoError(t, err)
	tr.run()
	require.True(t, proto.Equal(before, tr.cfg.Definition))
}
