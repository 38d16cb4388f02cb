package stale

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// stopped starts a process with these arguments, which does nothing, and stops it.
func stopped(t *testing.T, args ...string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh") // which takes the word "steps" for the name of its script
	script := filepath.Join(t.TempDir(), "steps")
	require.NoError(t, os.WriteFile(script, []byte("kill -STOP $$\nwhile :; do sleep 0.01; done\n"), 0o600))
	cmd.Dir = filepath.Dir(script)
	cmd.Args = append([]string{"stepmux", "steps"}, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it runs until then
		_ = cmd.Wait()
	})
	awaitState(t, cmd.Process.Pid, true)
	return cmd.Process.Pid
}

func awaitState(t *testing.T, pid int, stopped bool) {
	t.Helper()
	remotetest.Eventually(t, func() bool {
		p, err := proc.ReadInfo(pid)
		return err == nil && p.Stopped == stopped
	}, "its state")
}

func TestOnlyTheCommandsOfTheDirectoryAreContinued(t *testing.T) {
	tmp := t.TempDir()
	socket := filepath.Join(tmp, "gitlab-runner-steps", "b1", "step-runner.sock")
	ours := map[string]int{
		"serve":            stopped(t, "serve", "--socket", socket, "--secret-stdin"),
		"another spelling": stopped(t, "serve", "--socket="+socket),
		"proxy":            stopped(t, "proxy", "--socket", socket),
		"relay":            stopped(t, "relay", "--temp-dir", tmp),
		"prestarted":       stopped(t, "serve", "--socket", "-", "--secret-stdin"),
	}
	theirs := map[string]int{
		"serve elsewhere": stopped(t, "serve", "--socket", strings.Replace(socket, tmp, tmp+"2", 1)),
		"relay elsewhere": stopped(t, "relay", "--temp-dir", tmp+"2"),
		"another command": stopped(t, "cache", "--temp-dir", tmp),
	}
	Continue(tmp)
	for name, pid := range ours {
		t.Log(name)
		awaitState(t, pid, false)
	}
	for name, pid := range theirs {
		p, err := proc.ReadInfo(pid)
		require.NoError(t, err)
		require.True(t, p.Stopped, name)
	}
}

func TestMessageNamesABoundedNumberOfProcesses(t *testing.T) {
	var left []proc.Left
	for pid := range 12 {
		left = append(left, proc.Left{PID: pid, Name: "sh\n"})
	}
	text := Names(left)
	require.Contains(t, text, `process 9 ("sh\n"), and 2 more`)
	require.NotContains(t, text, "\n")
}

func TestSweepRemovesTheDirectoriesToo(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	dir := filepath.Join(tmp, "gitlab-runner-steps", "b1")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, unix.Access(dir, unix.R_OK))
	require.Empty(t, Sweep(t.Context(), tmp))
	remotetest.RequireGone(t, dir)
}
