package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/runnertest"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// localJob is a running job of `stepmux local`.
type localJob struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stdout *os.File
	stderr bytes.Buffer
	temp   string
	pid    int // of a process of the job that does not end by itself
}

// startLocal starts a job whose first line of output is the number of a process.
func startLocal(t *testing.T, script string, flags ...string) *localJob {
	t.Helper()
	steps, err := json.Marshal([]map[string]string{{"script": script}, {"script": "echo cleaning", "when": "always"}})
	require.NoError(t, err)
	j := &localJob{temp: t.TempDir()}
	j.cmd = exec.Command(runnertest.Manager(t), append([]string{"local", "--json", string(steps)}, flags...)...)
	j.cmd.Env = append(os.Environ(), "TMPDIR="+j.temp)
	j.cmd.Stderr = &j.stderr
	stdout, err := j.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	j.stdout, _ = stdout.(*os.File)
	j.lines = bufio.NewScanner(stdout)
	require.True(t, j.lines.Scan(), &j.stderr)
	j.pid, err = strconv.Atoi(j.lines.Text())
	require.NoError(t, err)
	return j
}

// wait waits for the end, requires that nothing is left, and returns the exit code and the rest of the output.
func (j *localJob) wait(t *testing.T) (code int, rest []string) {
	t.Helper()
	for j.lines.Scan() {
		rest = append(rest, j.lines.Text())
	}
	err := j.cmd.Wait()
	exit := (*exec.ExitError)(nil)
	require.True(t, errors.As(err, &exit), "%v", err)
	requireNoProcess(t, j.pid)
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(j.temp)
		return err == nil && len(left) == 0
	}, bound, time.Millisecond)
	return exit.ExitCode(), rest
}

func requireNoProcess(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }, bound, time.Millisecond)
}

func TestSignalEndsALocalJobWithItsGrace(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{
		syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143,
	} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			results := filepath.Join(t.TempDir(), "trace.json")
			j := startLocal(t,
				"trap 'echo ending; exit 1' TERM; setsid sleep 600 >/dev/null & echo $!; while :; do sleep 0.01; done",
				"--grace", "1m", "--output-file", results)
			require.NoError(t, j.cmd.Process.Signal(signal))
			code, rest := j.wait(t)
			require.Equal(t, want, code)
			require.Equal(t, []string{"ending", "cleaning"}, rest)
			text, err := os.ReadFile(results)
			require.NoError(t, err)
			require.Contains(t, string(text), `"reason":"cancelled"`)
			made, err := trace.Read(results)
			require.NoError(t, err)
			require.Equal(t, trace.Cancelled, made.Identity.Status)
		})
	}
}

func TestSecondSignalCutsALocalJobShort(t *testing.T) {
	j := startLocal(t, "trap 'echo asked' TERM; echo $$; while :; do sleep 0.01; done", "--grace", "10m")
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGINT))
	require.True(t, j.lines.Scan())
	require.Equal(t, "asked", j.lines.Text())
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGINT))
	code, rest := j.wait(t)
	require.Equal(t, 130, code)
	require.NotContains(t, rest, "cleaning")
}

// Symptom: a job whose output nobody read, as that of a pager that waits, went on after any number of signals.
func TestSecondSignalEndsALocalJobWhoseOutputNobodyReads(t *testing.T) {
	j := startLocal(t, "echo $$; while :; do echo more; done", "--grace", "10m")
	waiting := 0
	require.Eventually(t, func() bool {
		before := waiting
		waiting, _ = unix.IoctlGetInt(int(j.stdout.Fd()), unix.TIOCINQ)
		return waiting > 0 && waiting == before
	}, bound, 100*time.Millisecond, "the pipe is full")
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} { // two of a kind may arrive as one
		require.NoError(t, j.cmd.Process.Signal(signal))
	}
	ended := make(chan error, 1)
	go func() { ended <- j.cmd.Wait() }()
	require.Eventually(t, func() bool { return len(ended) > 0 }, bound, time.Millisecond)
	require.Regexp(t, "exit status (143|130)", <-ended)
	requireNoProcess(t, j.pid)
	left, err := os.ReadDir(j.temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// If a trace cannot be written, the file keeps its old content or stays missing.
func TestKilledLocalJobLeavesNoHalfTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	j := startLocal(t, "setsid sleep 600 >/dev/null & echo $!; wait", "--output-file", file)
	require.NoFileExists(t, file)
	require.NoError(t, j.cmd.Process.Kill())
	_, _ = j.wait(t)
	require.NoFileExists(t, file)
}

func TestKilledLocalJobLeavesNothing(t *testing.T) {
	j := startLocal(t, "setsid sleep 600 >/dev/null & echo $!; wait")
	require.NoError(t, j.cmd.Process.Kill())
	code, _ := j.wait(t)
	require.Equal(t, -1, code)
}

// cliCase is a conformance case of the command line.
type cliCase struct {
	Cmd    string
	Files  map[string]string
	Env    map[string]string
	Expect struct {
		Status        string
		ExitCode      *int     `json:"exit_code"`
		LogContains   []string `json:"log_contains"`
		ErrorContains []string `json:"error_contains"`
		FilesExist    []string `json:"files_exist"`
	}
}

// The cases name the program of the published examples, which this program replaces.
func TestConformanceOfTheCommandLine(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	bin := t.TempDir()
	require.NoError(t, os.Symlink(runnertest.Manager(t), filepath.Join(bin, "step-runner")))
	files, err := filepath.Glob(filepath.Join(root, "engine", "*-cli-*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			var c cliCase
			require.NoError(t, json.Unmarshal(data, &c))
			dir := t.TempDir()
			for name, text := range c.Files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			cmd := exec.Command("sh", "-c", c.Cmd)
			cmd.Dir = dir
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
			for name, value := range c.Env {
				cmd.Env = append(cmd.Env, name+"="+value)
			}
			out, err := cmd.CombinedOutput()
			exit := (*exec.ExitError)(nil)
			require.True(t, err == nil || errors.As(err, &exit), "%v", err)
			code := cmd.ProcessState.ExitCode()
			require.Equal(t, c.Expect.Status == "success", code == 0, "%d\n%s", code, out)
			if c.Expect.ExitCode != nil {
				require.Equal(t, *c.Expect.ExitCode, code)
			}
			for _, text := range append(c.Expect.LogContains, c.Expect.ErrorContains...) {
				require.Contains(t, string(out), text)
			}
			for _, name := range c.Expect.FilesExist {
				require.FileExists(t, filepath.Join(dir, name))
			}
		})
	}
}

// The help and the docs list all exit codes of the program.
func TestHelpOfLocalCommandsNamesTheExitCodes(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	for _, code := range []int{exitUsage, exitSystem, exitTimeout, 125, 128 + int(syscall.SIGINT), 128 +
		int(syscall.SIGTERM)} {
		named := regexp.MustCompile(fmt.Sprintf(`(?m)\b%d\b`, code))
		require.Regexp(t, named, jobExitHelp)
		require.Regexp(t, named, string(page))
	}
	require.Contains(t, strings.ToLower(jobExitHelp), "exit codes")
}

// run had --env, and a job that was tried with local first had no such flag.
func TestTheEnvironmentOfALocalJob(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"steps.yml": "run:\n- {name: a, script: 'echo $A-$B-$C', env: {C: own}}\n",
		"ci.yml":    "job:\n  variables: {C: own}\n  script: ['echo $A-$B-$C']\n",
		"work.yml":  "on: push\njobs: {job: {runs-on: x, env: {C: own}, steps: [{run: 'echo $A-$B-$C'}]}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "flags.yml"), []byte("env: [A=1, B=two words]\n"), 0o600))
			format := map[string]string{"steps.yml": "steps", "ci.yml": "gitlab-ci", "work.yml": "github"}[name]
			cmd := exec.Command(runnertest.Manager(t), "local", name, "--format", format, "--config", "flags.yml",
				"--output-file", "trace.json")
			cmd.Dir = dir
			out, err := cmd.Output()
			require.NoError(t, err)
			require.Contains(t, string(out), "1-two words-own\n")
			again := exec.Command(runnertest.Manager(t), "replay", "trace.json")
			again.Dir = dir
			out, err = again.Output()
			require.NoError(t, err)
			require.Contains(t, string(out), "1-two words-own\n", "its trace has it")
		})
	}
	_, _, said := begin(t, "local", "--env", "A B=1", "steps.yml")()
	require.Contains(t, said, `"A B=1": write NAME=VALUE`)
}
