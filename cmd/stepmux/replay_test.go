package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// slowReplay starts a replay of a job that ended at once in its trace, and does not end by itself in the replay.
func slowReplay(t *testing.T, args ...string) *localJob {
	t.Helper()
	program := runnertest.Manager(t)
	dir, temp := t.TempDir(), sshtest.SocketDir(t)
	job := "- script: \"test -e again || exit 0; trap 'echo ending; exit 1' TERM; setsid sleep 600 >/dev/null & echo " +
		"$!; while :; do sleep 0.01; done\"\n- {script: 'echo cleaning', when: always}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.yml"), []byte(job), 0o600))
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + temp}
		return cmd
	}
	out, err := command("local", "job.yml", "--output-file", "trace.json").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "again"), nil, 0o600))
	j := &localJob{cmd: command(append([]string{"replay", "trace.json"}, args...)...), temp: temp}
	stdout, err := j.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	j.lines = bufio.NewScanner(stdout)
	require.True(t, j.lines.Scan())
	j.pid, err = strconv.Atoi(strings.TrimSpace(j.lines.Text()))
	require.NoError(t, err)
	return j
}

func TestSignalEndsAReplayWithItsGrace(t *testing.T) {
	j := slowReplay(t, "--grace", "1m", "--check", "5", "--output-file", "new.json")
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGINT))
	code, rest := j.wait(t)
	require.Equal(t, 130, code)
	require.Equal(t, []string{"ending", "cleaning"}, rest, "and no run after it")
	made, err := trace.Read(filepath.Join(j.cmd.Dir, "new.json"))
	require.NoError(t, err)
	require.Equal(t, trace.Cancelled, made.Identity.Status)
}
