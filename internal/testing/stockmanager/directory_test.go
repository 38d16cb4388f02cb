package stockmanager_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// Symptom: a serve that refused the directory of its socket left the manager waiting until the job's timeout.
//
//stepmux:faults manager | A job never waits for a serve that refuses its directory: 0755, not empty, a symbolic link,
//stepmux:more another user's, missing, full, read-only, too long
//stepmux:with internal/testing/stockmanager.TestStockManagersJobRunsOnAFullTmp
//stepmux:with internal/testing/stockmanager.TestStockManagersJobRunsOnANoexecTmp
//stepmux:with remote/socketdir.TestGivenDirThatCannotBeUsedIsLeftAlone
func TestStockManagersJobRunsInAnyDirectory(t *testing.T) {
	moved := regexp.MustCompile(`(?m)^step-runner: cannot use the directory of the socket, made (/\S+) instead: (.*)$`)
	for name, tc := range map[string]struct {
		spoil string // what the VM's mktemp does to the directory $d
		why   string
	}{
		"it is open to others": {`chmod 755 "$d"`, "has mode 0755"},
		"it is not empty":      {`touch "$d/file"`, `is not empty: it has "file"`},
		"it is a symbolic link": {
			`mv "$d" "$d.real" && ln -s "$d.real" "$d"`, "is a symbolic link",
		},
		"it is another user's": {`chown 65534 "$d"`, "belongs to user 65534"},
		"it is missing":        {`rmdir "$d"`, "no such file or directory"},
		"it is a file":         {`rmdir "$d"; touch "$d"`, "is a regular file"},
		"it is too long":       {`e="$d/$(printf %0100d 0)"; mkdir -m 700 "$e"; d=$e`, "a unix socket allows 107"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(tc.spoil, "chown") {
				remotetest.NeedRoot(t)
			}
			v := newVM(t, remotetest.ShortTemp(t))
			v.install(t, "mktemp", `d=$(/usr/bin/mktemp "$@") && { `+tc.spoil+`; } && echo "$d"`)
			result, log := v.run(t, v.job("1", "echo hello; exit 7"))
			require.Equal(t, runnerproto.Status_failure, result.State, result.Message)
			require.Equal(t, 7, result.ExitCode)
			require.Contains(t, log, "hello\n")
			line := moved.FindStringSubmatch(log)
			require.NotNil(t, line, "log: %s", log)
			require.Contains(t, line[2], tc.why)
			waitGone(t, line[1])
			v.removeSpoilt(t)
		})
	}
}

// removeSpoilt removes the files that the trap of the manager's shell leaves in a directory that another mktemp has
// spoilt.
func (v *vm) removeSpoilt(t *testing.T) {
	t.Helper()
	for _, name := range remotetest.Names(t, v.Temp) {
		require.NoError(t, os.RemoveAll(filepath.Join(v.Temp, name)))
	}
}

func TestStockManagersJobRunsOnAFullTmp(t *testing.T) {
	v := newVM(t, remotetest.TinyFS(t))
	require.ErrorIs(t, os.WriteFile(filepath.Join(v.Temp, "big"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
	result, log := v.run(t, v.job("1", "echo hello"))
	require.Equal(t, runnerproto.Status_success, result.State, result.Message)
	require.Regexp(t, `(?m)^step-runner: cannot use the directory of the socket, made .*no space left on device`, log)
	require.NoError(t, os.Remove(filepath.Join(v.Temp, "big")))
}

func TestStockManagersJobRunsOnANoexecTmp(t *testing.T) {
	v := newVM(t, remotetest.TinyFS(t))
	require.NoError(t, unix.Mount("", v.Temp, "", unix.MS_REMOUNT|unix.MS_NOEXEC, "size=4m"))
	result, log := v.run(t, v.job("1", "echo hello"))
	require.Equal(t, runnerproto.Status_success, result.State, result.Message)
	require.Contains(t, log, "hello\n")
	require.NotContains(t, log, "cannot use")
}

//stepmux:faults manager | `steps serve` takes the private directory that the manager's shell makes, keeps its files
//stepmux:more there, and removes no more than it made
//stepmux:with remote.TestServeKeepsItsFilesInADirectoryOfItsCallersAndLeavesItEmpty
//stepmux:with remote.TestServeEndsWellWhenItsCallerHasRemovedTheDirectory
//stepmux:with remote.TestKilledServeLeavesItsCallersDirectoryWithoutFilesOfJobs
//stepmux:with remote/socketdir.TestGivenDirLocksAndSweepsNothingOutside
func TestStockManagersDirectoryInTmpIsTaken(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	var socket string
	job := v.job("1", "echo hello")
	job.Serving = func(path string) { socket = path }
	manager := *v.Manager
	manager.Temp = "" // /tmp
	result, err := manager.Execute(sshtest.Within(t), job)
	require.NoError(t, err)
	require.Equal(t, runnerproto.Status_success, result.State, result.Message)
	require.Regexp(t, `^/tmp/step-runner\.[A-Za-z0-9]{8}/step-runner\.sock$`, socket)
	waitGone(t, filepath.Dir(socket))
}

// waitGone waits until there is no file at path.
func waitGone(t *testing.T, path string) {
	t.Helper()
	remotetest.Eventually(t, func() bool { _, err := os.Lstat(path); return err != nil }, path+" is left")
}
