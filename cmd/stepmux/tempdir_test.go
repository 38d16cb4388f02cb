package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/wire"
)

// The directory of an embedded VM, with the program unpacked in it, stayed in /tmp after each kill.
//
//stepmux:faults executor | Each kill of a run on its own machine leaves its temporary directory, 20 MB
func TestTheNextProgramRemovesTheTemporaryDirectoriesOfAKilledOne(t *testing.T) {
	t.Parallel()
	for name, linger := range map[string]string{"its builds end with it": "0s", "its build lingers": "10m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := runnertest.Manager(t)
			tmp, dir := remotetest.ShortTemp(t), t.TempDir()
			others := filepath.Join(tmp, "stepmux-1") // of a user who likes the name
			require.NoError(t, os.Mkdir(others, 0o700))
			wait, open := remotetest.Gate(t, filepath.Join(dir, "go"))
			job := filepath.Join(dir, "job.yml")
			require.NoError(t, os.WriteFile(job, []byte("run:\n  - script: |\n      echo started\n      "+wait+"\n"), 0o600))
			run := func(args ...string) *exec.Cmd {
				cmd := exec.Command(program, append([]string{"run", "--isolation", "off"}, args...)...)
				cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
				return cmd
			}
			first := run("--linger", linger, job)
			out, err := first.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, first.Start())
			awaitLine(t, bufio.NewScanner(out), "started")
			left := tempDirsIn(t, tmp)
			require.Len(t, left, 1)

			other := filepath.Join(dir, "other.yml")
			require.NoError(t, os.WriteFile(other, []byte("run: [{script: \"true\"}]\n"), 0o600))
			text, err := run(other).CombinedOutput()
			require.NoError(t, err, "%s", text)
			require.Equal(t, left, tempDirsIn(t, tmp), "the first program lives")

			require.NoError(t, first.Process.Kill())
			require.Error(t, first.Wait())
			if linger != "0s" {
				text, err = run(other).CombinedOutput()
				require.NoError(t, err, "%s", text)
				require.Equal(t, left, tempDirsIn(t, tmp), "a build in it lingers")
				builds, err := filepath.Glob(filepath.Join(left[0], wire.SocketBase+"*", "*", wire.SocketName))
				require.NoError(t, err)
				require.Len(t, builds, 1)
				text, err = exec.Command(program, "steps", "end", "--socket", builds[0]).CombinedOutput()
				require.NoError(t, err, "%s", text)
			}
			open()
			require.Eventually(t, func() bool {
				text, err := run(other).CombinedOutput()
				require.NoError(t, err, "%s", text)
				return len(tempDirsIn(t, tmp)) == 0
			}, bound, 10*time.Millisecond)
			require.DirExists(t, others)
		})
	}
}

// tempDirsIn returns the directories that makeTempDir has made in tmp.
func tempDirsIn(t *testing.T, tmp string) []string {
	t.Helper()
	marks, err := filepath.Glob(filepath.Join(tmp, tempPrefix+"*", tempMark))
	require.NoError(t, err)
	dirs := make([]string, len(marks))
	for i, mark := range marks {
		dirs[i] = filepath.Dir(mark)
	}
	return dirs
}
