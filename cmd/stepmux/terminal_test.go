package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/runnertest"
)

// A build could forge the line of another on a terminal: the log's bytes went there as they were.
func TestALogCannotForgeAnotherBuildsLineOnATerminal(t *testing.T) {
	t.Parallel()
	job := filepath.Join(t.TempDir(), "job.yml")
	require.NoError(t, os.WriteFile(job,
		[]byte("run: [{script: \"printf 'a\\\\rb-2 | x\\\\033[2K\\\\033]0;t\\\\007\\\\033[31mred\\\\n'\"}]\n"), 0o600))
	for output, want := range map[string]string{
		"text": ` | a\rb-2 | x\x1b[2K\x1b]0;t\a` + "\x1b[31mred\x1b[0m\r\n",
		"raw":  " | a\rb-2 | x\x1b[2K\x1b]0;t\a\x1b[31mred\r\n",
	} {
		terminal, shown := openTerminal(t)
		cmd := exec.Command(runnertest.Manager(t), "run", "--output", output, job)
		cmd.Stdout = terminal
		require.NoError(t, cmd.Start())
		require.NoError(t, terminal.Close())
		text := make([]byte, 0, 4096)
		for { // Linux ends the reading of a terminal that nobody has open with EIO
			n, err := shown.Read(text[len(text):cap(text)])
			text = text[:len(text)+n]
			if err != nil {
				break
			}
		}
		require.NoError(t, cmd.Wait())
		require.Contains(t, string(text), want, output)
	}
}

// openTerminal returns a terminal, and the file that tells what it shows.
func openTerminal(t *testing.T) (terminal, shown *os.File) {
	t.Helper()
	shown, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("part missing: no terminals here: %v", err)
	}
	t.Cleanup(func() { shown.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(shown.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(shown.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return terminal, shown
}
