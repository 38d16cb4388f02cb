package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// A build could forge the line of another on a terminal: the log's bytes went there as they were.
//
//stepmux:faults input | The log of a build forges the line of another on the operator's terminal
//stepmux:with internal/termtext.TestLogLineKeepsColoursAndNothingElseThatATerminalObeys
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

// The view is cut to the width of the terminal, also to one that changes meanwhile.
func TestTheLiveViewFitsATerminalThatChangesItsSize(t *testing.T) {
	t.Parallel()
	terminal, shown := openTerminal(t)
	resize := func(columns uint16) {
		require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: columns}))
	}
	resize(20)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	build := scriptFile(t, wait)
	cmd := exec.Command(runnertest.Manager(t), "run", "--builds", "2", build)
	cmd.Stdout, cmd.Stderr = terminal, terminal
	require.NoError(t, cmd.Start())
	var text sshtest.Log
	ended := make(chan struct{})
	go func() { // it ends with the terminal
		defer close(ended)
		_, _ = io.Copy(&text, shown)
	}()
	const narrow, wide = "0 of 2 builds done,", "0 of 2 builds done, 1 running, 1 waiting, 0 failed"
	text.Await(t, narrow)
	require.NotContains(t, text.String(), wide)
	resize(100)
	text.Await(t, wide)
	open()
	require.NoError(t, cmd.Wait())
	require.NoError(t, terminal.Close())
	<-ended
	require.Contains(t, text.String(), "2 builds, 0 failed")
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
