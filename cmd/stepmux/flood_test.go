package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// runUnread runs two builds at once whose standard output nobody reads: one writes without end, the other a line.
// end is called when the pipe is full, with the process of the run and the one that writes; took counts from there.
func runUnread(
	t *testing.T, end func(run *os.Process, flood int), args ...string,
) (code int, took time.Duration, stderr string) {
	t.Helper()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	flooding := "echo $$ >" + pidFile + "; exec yes flood"
	for name, script := range map[string]string{"flood": flooding, "innocent": "echo innocent"} {
		text := "run:\n- script: " + script + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".yml"), []byte(text), 0o600))
	}
	unread, stdout, err := os.Pipe()
	require.NoError(t, err)
	defer unread.Close()
	defer stdout.Close()
	args = append([]string{"run", "--capacity", "2"}, args...)
	args = append(args, filepath.Join(dir, "flood.yml"), filepath.Join(dir, "innocent.yml"))
	cmd := exec.Command(runnertest.Manager(t), args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &said
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(4*bound, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		_ = cmd.Process.Kill() // unless it has ended
	})
	require.Eventually(t, func() bool {
		n, err := unix.IoctlGetInt(int(unread.Fd()), unix.TIOCINQ)
		return err == nil && n > 32<<10
	}, bound, time.Millisecond)
	written, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	flood, err := strconv.Atoi(strings.TrimSpace(string(written)))
	require.NoError(t, err)
	start := time.Now()
	end(cmd.Process, flood)
	err = cmd.Wait()
	exit := (*exec.ExitError)(nil)
	require.True(t, errors.As(err, &exit), "%v", err)
	return exit.ExitCode(), time.Since(start), said.String()
}

// A reader that took nothing held up all builds, and the run outlived its --timeout: the log was written under a lock
// that the builds shared.
//
//stepmux:faults executor | A reader of the manager's output that takes nothing hangs all builds, past their timeouts
//stepmux:more and signals
//stepmux:with cmd/stepmux.TestASecondSignalEndsARunThatNobodyReadsAtOnce
func TestAReaderThatTakesNothingCostsTheBuildThatFloodsIt(t *testing.T) {
	t.Parallel()
	code, _, stderr := runUnread(t, func(*os.Process, int) {}, "--timeout", "5s", "--stop-timeout", "3s")
	require.Equal(t, exitTimeout, code, stderr)
	require.Contains(t, stderr, "2 builds, 1 failed", "the innocent build succeeds")
	require.Contains(t, stderr, "standard output takes nothing")
}

// Two signals did not end such a run.
func TestASecondSignalEndsARunThatNobodyReadsAtOnce(t *testing.T) {
	t.Parallel()
	code, took, stderr := runUnread(t, func(run *os.Process, flood int) {
		require.NoError(t, run.Signal(syscall.SIGINT))
		// Two signals at once may be one. The first has had its effect when the job's process has ended.
		ended := func() bool { return errors.Is(syscall.Kill(flood, 0), syscall.ESRCH) }
		require.Eventually(t, ended, bound, time.Millisecond)
		require.NoError(t, run.Signal(syscall.SIGINT))
	})
	require.Equal(t, 128+int(syscall.SIGINT), code, stderr)
	require.Less(t, took, 30*time.Second)
}
