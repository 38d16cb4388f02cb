package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// lingeringRun starts stepmux run with a linger on an sshd behind a proxy. Its job says where it is, waits until
// proceed is called, and fails with 9.
func lingeringRun(t *testing.T, linger string) (
	cmd *exec.Cmd, proxy *sshtest.TCPProxy, stdout *bufio.Scanner, stderr *bytes.Buffer, proceed func(),
) {
	t.Helper()
	s := sshtest.OpenSSH(t)
	proxy = sshtest.Proxy(t, s.Addr)
	via := s.Via(t, proxy.Addr())
	program := runnertest.Manager(t)
	dir := t.TempDir()
	job := filepath.Join(dir, "job.yml")
	wait, open := remotetest.Gate(t, filepath.Join(dir, "go"))
	require.NoError(t, os.WriteFile(job, []byte(`run:
  - script: |
      echo "started in $(pwd)"
      `+wait+`
      echo "went on"
      exit 9
`), 0o600))
	cmd = exec.Command(program, "run", "--instance", "ssh://"+via.User+"@"+via.Addr, "--identity", via.IdentityFile,
		"--known-hosts", via.KnownHosts, "--runner-command", program, "--linger", linger, job)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, proxy, bufio.NewScanner(out), stderr, open
}

// awaitLine returns the next line with this text.
func awaitLine(t *testing.T, lines *bufio.Scanner, text string) string {
	t.Helper()
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return lines.Text()
		}
	}
	require.FailNow(t, "no line has "+text)
	return ""
}

// directoryIn returns the directory of the build that a line names.
func directoryIn(t *testing.T, line string) string {
	t.Helper()
	_, dir, ok := strings.Cut(line, "started in ")
	require.True(t, ok, line)
	build, _, ok := strings.Cut(dir, "/jobs/")
	require.True(t, ok, line)
	return build
}

func TestARunWithLingerGoesOnAfterItsLinkWasAway(t *testing.T) {
	t.Parallel()
	cmd, proxy, lines, stderr, proceed := lingeringRun(t, "2m")
	dir := directoryIn(t, awaitLine(t, lines, "started in "))
	proxy.Stall() // before the cut: no new connection gets through
	proxy.Cut()
	awaitLine(t, lines, "step runner: the connection to the VM is lost")
	proxy.Cut()
	proxy.Resume()
	proceed()
	var rest string
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	require.Equal(t, 1, strings.Count(rest, "step runner: the connection to the VM is back after"), rest)
	require.Equal(t, 1, strings.Count(rest, "went on"), rest)
	exit := (*exec.ExitError)(nil)
	require.True(t, errors.As(cmd.Wait(), &exit))
	require.Equal(t, 9, exit.ExitCode(), "%s", stderr)
	require.Contains(t, stderr.String(), "script_failure")
	requireNothingIn(t, dir)
}

func TestABuildThatLingersEndsByItselfAfterItsManagerWasKilled(t *testing.T) {
	t.Parallel()
	const linger = 2 * time.Second
	began := time.Now() // the manager attaches later: the lease counts from its last call before it was killed
	cmd, _, lines, _, _ := lingeringRun(t, linger.String())
	dir := directoryIn(t, awaitLine(t, lines, "started in "))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireNothingIn(t, dir)
	require.GreaterOrEqual(t, time.Since(began), linger, "it went on for its linger")
}
