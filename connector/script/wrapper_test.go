package script

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
)

const testKey = "0123456789abcdef0123456789abcdef"

// wrapped runs a wrapper by a shell and returns its stdout and the end that it reported there and, the same, on stderr.
// stdin ends after the given text, unless hold keeps it open.
func wrapped(t *testing.T, sh []string, argv []string, stdin string, hold bool, env ...string) (string, wire.End) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), sh[0], append(sh[1:], argv[1:]...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Minute
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	go func() {
		_, _ = in.Write([]byte(testKey + "\n" + stdin))
		if !hold {
			in.Close()
		}
	}()
	_ = cmd.Wait() // the line tells
	in.Close()
	outScan, errScan := wire.NewEndScanner(testKey), wire.NewEndScanner(testKey)
	out := string(outScan.Scan(stdout.Bytes()))
	_ = errScan.Scan(stderr.Bytes())
	end, ok := outScan.End()
	require.True(t, ok, "stdout %q, stderr %q", &stdout, &stderr)
	same, _ := errScan.End()
	require.Equal(t, end, same)
	return out, end
}

// shells are those that a Linux VM has as its sh: Debian's, that of most others, and Alpine's, where BusyBox is all
// other programs too. The wrappers do not work in ksh, which makes sockets of pipes, nor in zsh.
func shells(t *testing.T, test func(t *testing.T, sh []string)) {
	for _, sh := range [][]string{{"dash"}, {"bash", "--posix"}, {"busybox", "sh"}} {
		t.Run(sh[0], func(t *testing.T) {
			program, err := exec.LookPath(sh[0])
			if err != nil {
				t.Skipf("part missing: %v", err)
			}
			if sh[0] == "busybox" {
				applets, err := exec.CommandContext(t.Context(), program, "--list").Output()
				require.NoError(t, err)
				dir := t.TempDir()
				for _, name := range strings.Fields(string(applets)) {
					require.NoError(t, os.Symlink(program, filepath.Join(dir, name)))
				}
				t.Setenv("PATH", dir)
			}
			test(t, append([]string{program}, sh[1:]...))
		})
	}
}

func TestScriptThatDidNotArriveWholeIsNotRun(t *testing.T) {
	shells(t, func(t *testing.T, sh []string) {
		out, end := wrapped(t, sh, scriptArgv([]string{"sh"}, 100, time.Second, "x"), "echo run\n", false)
		require.Empty(t, out)
		require.Equal(t, "truncated", end.Stage)
		require.Contains(t, end.Text, "9 of 100 bytes")
	})
}

func TestWrappersWorkInEachShell(t *testing.T) {
	shells(t, func(t *testing.T, sh []string) {
		script := "echo out; printf tail; exit 7"
		out, end := wrapped(t, sh, scriptArgv([]string{"sh"}, len(script), time.Second, "x1"), script, true)
		require.Equal(t, "out\ntail", out)
		require.Equal(t, wire.End{Code: 7}, end)

		out, end = wrapped(t, sh, lineArgv("cat; exit 9", true, time.Second, "x2"), "3\na\nb5\n\x00\xff\nx\n0\n", true)
		require.Equal(t, "a\nb\x00\xff\nx\n", out)
		require.Equal(t, wire.End{Code: 9}, end)

		out, end = wrapped(t, sh, lineArgv("read x; read y; echo $y $x; exit 3", false, time.Second, "x3"), "a\nb\n", true)
		require.Equal(t, "b a\n", out)
		require.Equal(t, wire.End{Code: 3}, end)
	})
}

//stepmux:faults executor | Where the VM's programs are BusyBox's, what a script put into a session of its own outlives
//stepmux:more it
func TestWrappersEndWithTheirStdin(t *testing.T) {
	shells(t, func(t *testing.T, sh []string) {
		file := filepath.Join(t.TempDir(), "pids")
		line := "echo $$ >>" + file + "; setsid sh -c 'echo $$ >>" + file + "; sleep 600; true' & exec sleep 600"
		for name, run := range map[string]func() wire.End{
			"script": func() wire.End {
				_, end := wrapped(t, sh, scriptArgv([]string{"sh"}, len(line), time.Second, "y1"), line, false)
				return end
			},
			"command": func() wire.End {
				_, end := wrapped(t, sh, lineArgv(line, false, time.Second, "y2"), "", false)
				return end
			},
			"command with pieces": func() wire.End {
				_, end := wrapped(t, sh, lineArgv(line, true, time.Second, "y3"), "5\nab", false)
				return end
			},
		} {
			end := run()
			require.Equal(t, wire.End{Code: 143}, end, name)
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			require.NoError(t, err)
			require.Eventually(
				t, func() bool { return !sshtest.Runs(pid) }, time.Minute, 5*time.Millisecond, "process %d", pid)
		}
	})
}

func TestWrapperThatIsKilledLeavesNoCommand(t *testing.T) {
	shells(t, func(t *testing.T, sh []string) {
		file := filepath.Join(t.TempDir(), "pid")
		mark := filepath.Base(sh[0]) // what a killed wrapper leaves looks for its mark for some seconds
		argv := lineArgv("read x; echo $$ >"+file+"; kill -KILL $PPID; exec sleep 600", false, time.Second, mark)
		cmd := exec.CommandContext(t.Context(), sh[0], append(sh[1:], argv[1:]...)...)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = in.Write([]byte(testKey + "\nx\n")) // the x comes by the leash
		require.NoError(t, err)
		var pid int
		require.Eventually(t, func() bool {
			text, _ := os.ReadFile(file)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			return pid > 0
		}, time.Minute, 5*time.Millisecond)
		in.Close()
		_ = cmd.Wait() // killed
		require.Eventually(t, func() bool { return !sshtest.Runs(pid) }, time.Minute, 5*time.Millisecond)
	})
}
