package engine

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/proc"
)

func TestStepsRunOneAfterTheOther(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: "echo one; echo err >&2"}
- {name: b, exec: {command: [echo, "$HOME; ls | wc"]}}
`)
	res := tr.run()
	require.Equal(t, Success, res.Status, res.Message)
	require.Zero(t, res.ExitCode)
	require.Empty(t, res.Message)
	require.Equal(t, "one\n$HOME; ls | wc\n", tr.stdout.String())
	require.Equal(t, "err\n", tr.stderr.String())
	require.Equal(t, []string{"a running", "a success", "b running", "b success"}, tr.events)
	require.False(t, res.Steps[0].Started.IsZero())
	require.False(t, res.Steps[1].Started.Before(res.Steps[0].Finished))
}

func TestJobStopsAtTheFirstStepThatFails(t *testing.T) {
	tr := newTrial(t, `
- {name: one, script: echo one}
- {name: two, script: exit 3}
- {name: three, script: echo three}
`)
	res := tr.run()
	require.Equal(t, Failure, res.Status)
	require.Equal(t, 3, res.ExitCode)
	require.Equal(t, `step "two": exec: exit status 3`, res.Message)
	require.Equal(t, []string{"one success", "two failure", "three skipped"}, statuses(res.Steps))
	require.Equal(t, []string{"one running", "one success", "two running", "two failure", "three skipped"}, tr.events)
	require.Equal(t, "one\n", tr.stdout.String())
}

func TestWhenDecidesWhetherAStepRunsAfterAFailure(t *testing.T) {
	const cleanup = `
- {name: failed, script: exit 4, when: on_failure}
- {name: ok, script: "true"}
- {name: always, script: exit 5, when: always}
`
	t.Run("after a failure", func(t *testing.T) {
		res := newTrial(t, "- {name: a, script: exit 3}"+cleanup).run()
		require.Equal(t, []string{"a failure", "failed failure", "ok skipped", "always failure"}, statuses(res.Steps))
		require.Equal(t, 3, res.ExitCode, "that of the first failure")
		require.Equal(t, `step "a": exec: exit status 3`, res.Message)
	})
	t.Run("after success", func(t *testing.T) {
		res := newTrial(t, `- {name: a, script: "true"}`+cleanup).run()
		require.Equal(t, []string{"a success", "failed skipped", "ok success", "always failure"}, statuses(res.Steps))
		require.Equal(t, Failure, res.Status)
		require.Equal(t, 5, res.ExitCode)
	})
}

func TestExitCodesAreThoseOfAShell(t *testing.T) {
	for name, tc := range map[string]struct {
		step    string
		code    int
		message string
	}{
		"script":            {`script: exit 42`, 42, `step "step_1": exec: exit status 42`},
		"exec":              {`exec: {command: [sh, -c, exit 42]}`, 42, `step "step_1": exec: exit status 42`},
		"command not found": {`script: no-such-program-xyz`, 127, `step "step_1": exec: exit status 127`},
		"program not found": {`exec: {command: [no-such-program-xyz]}`, 127, `step "step_1": start ` +
			`"no-such-program-xyz": not found: no directory of its PATH has it: exit status 127`},
		"not executable": {`exec: {command: [/etc/passwd]}`, 126, `step "step_1": start "/etc/passwd": not ` +
			`executable: permission denied: exit status 126`},
		"signal": {`script: kill -9 $$`, 137, `step "step_1": exec: ended by signal 9 (killed): exit status ` +
			`137`},
		"last line counts":    {"script: |\n    false\n    echo reached", 0, ""},
		"pipe hides failures": {`script: "false | true"`, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := newTrial(t, "- "+tc.step+"\n").run()
			require.Equal(t, tc.message, res.Message)
			require.Equal(t, tc.code, res.ExitCode)
			require.Equal(t, tc.code == 0, res.Status == Success)
		})
	}
}

func TestMissingWorkDirIsNamed(t *testing.T) {
	res := newTrial(t, `- exec: {command: ["true"], work_dir: no/such}`).run()
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, "no/such")
	require.Contains(t, res.Message, "no such file or directory")
}

func TestExecRunsInItsWorkDir(t *testing.T) {
	tr := newTrial(t, `
- script: mkdir -p sub/dir; pwd
- exec: {command: [pwd], work_dir: sub/dir}
- exec: {command: [pwd], work_dir: /}
`)
	require.Equal(t, Success, tr.run().Status)
	dir, err := filepath.EvalSymlinks(tr.place.WorkDir)
	require.NoError(t, err)
	require.Equal(t, dir+"\n"+dir+"/sub/dir\n/\n", tr.stdout.String())
}

func TestStepsReadNothingFromStdin(t *testing.T) {
	tr := newTrial(t, `- script: cat; readlink /proc/self/fd/0`)
	require.Equal(t, Success, tr.run().Status)
	require.Equal(t, "/dev/null\n", tr.stdout.String())
}

func TestPanicFailsTheJobAndLeavesNoProcess(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: 'sleep 4714 >/dev/null 2>&1 & echo $!'}\n- {name: b, script: 'true'}\n",
		func(c *Config) {
			c.Observe = func(r StepResult) {
				if r.Name == "b" {
					panic("the observer is broken")
				}
			}
		})
	res := tr.run()
	require.Equal(t, Failure, res.Status)
	require.Equal(t, "internal error of the step runner: the observer is broken", res.Message)
	require.Equal(t, []string{"a success", "b failure"}, statuses(res.Steps))
	require.False(t, alive(t, tr.stdout.String()))
}

func TestBackgroundProcessLivesUntilTheJobEnds(t *testing.T) {
	tr := newTrial(t, `
- {name: quiet, script: "sleep 4715 >/dev/null 2>&1 & echo $! > quiet"}
- {name: own_session, script: "setsid sleep 4715 >/dev/null 2>&1 & echo $! > session"}
- {name: holds_output, script: "sleep 4715 & echo $! > loud; echo done"}
- {name: check, script: "kill -0 $(cat quiet) && kill -0 $(cat session) && kill -0 $(cat loud)"}
`)
	res := tr.run()
	require.Equal(t, Success, res.Status, res.Message)
	require.Equal(t, "done\n", tr.stdout.String())
	for _, name := range []string{"quiet", "session", "loud"} {
		pid, err := os.ReadFile(filepath.Join(tr.place.WorkDir, name))
		require.NoError(t, err)
		require.False(t, alive(t, string(pid)), name)
	}
}

func TestJobOfManyStepsHoldsABoundedNumberOfProcesses(t *testing.T) {
	most := 0
	tr := newTrial(t, strings.Repeat("- exec: {command: ['true']}\n", 12), func(c *Config) {
		c.Observe = func(StepResult) { most = max(most, children(t)) }
	})
	tr.maxKept = 4
	before := children(t)
	require.Equal(t, Success, tr.run().Status)
	require.LessOrEqual(t, most, before+tr.maxKept)
	require.LessOrEqual(t, children(t), before)
}

// children returns how many children this process has.
func children(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	n := 0
	for _, file := range files {
		list, _ := os.ReadFile(file) // the thread may have ended
		n += len(strings.Fields(string(list)))
	}
	return n
}

// Symptom: a machine that could open no more files, or start no more processes, failed jobs as if their scripts had
// failed.
func TestFailureOfTheMachineIsNotTheStepsFailure(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		system bool
	}{
		"no more files":     {&os.SyscallError{Syscall: "pipe2", Err: unix.EMFILE}, true},
		"no more processes": {unix.EAGAIN, true},
		"no more memory":    {unix.ENOMEM, true},
		"a full disk":       {&fs.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}, true},
		"no such program":   {&proc.StartError{Program: "x", Reason: proc.ErrNotFound, Err: unix.ENOENT}, false},
		"no such directory": {unix.ENOENT, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, steps := range []string{"[{name: a, exec: {command: [x]}}]", "[{name: outer, run: [{name: a, exec: " +
				"{command: [x]}}]}]"} {
				tr := newTrial(t, steps, func(cfg *Config) {
					cfg.Start = func(context.Context, proc.Command) (*proc.Process, error) {
						return nil, fmt.Errorf("start: "+
							"%w", c.err)
					}
				})
				res := tr.run()
				require.Equal(t, Failure, res.Status)
				require.Equal(t, c.system, res.System, res.Message)
				require.Equal(t, c.system, res.Steps[0].System)
			}
		})
	}
}

// A program that reports the steps of a job finds them in its output by the marks, with the output of both streams
// between them. Steps that do not run have no marks, nor have those that a step calls.
func TestMarksTellWhereTheStepsOfTheJobBeginAndEnd(t *testing.T) {
	tr := newTrial(t, `
run:
- {name: a, script: "echo out; echo err >&2; echo glpat-abc"}
- {name: list, step: ./list}
- {name: bad, script: "printf unfinished; exit 3"}
- {name: never, script: echo no}
- {name: last, script: echo last, when: always}
`, func(c *Config) { c.Marks, c.MaskPrefixes = "t0ken", []string{"glpat-"} })
	tr.files(map[string]string{"list/step.yml": "spec: {}\n---\nrun: [{name: inner, script: echo inner}]\n"})
	tr.fail(`step "bad": exec: exit status 3`)
	require.Equal(t, `##[step:t0ken] 0 begin
out
err
glpat-[MASKED]
##[step:t0ken] 0 success
##[step:t0ken] 1 begin
inner
##[step:t0ken] 1 success
##[step:t0ken] 2 begin
unfinished##[step:t0ken] 2 failure
##[step:t0ken] 4 begin
last
##[step:t0ken] 4 success
`, tr.stdout.String())
	require.Empty(t, tr.stderr.String())
}
