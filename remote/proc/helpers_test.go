package proc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	// testTimeout bounds the wait for an event that must come.
	testTimeout = 30 * time.Second

	testPath = "PATH=/usr/local/bin:/usr/bin:/bin"
)

// shell returns a command that runs script with arguments $1 and on.
func shell(script string, args ...string) Command {
	return Command{
		Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		Dir:  "/",
		Env:  []string{testPath},
	}
}

func start(t *testing.T, c Command) *Process {
	t.Helper()
	p, err := Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// run runs c to its end and returns its exit, stdout and stderr.
func run(t *testing.T, c Command) (Exit, string) {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	p := start(t, c)
	exit := wait(t, p)
	require.NoError(t, p.Close())
	return exit, out.String() + errs.String()
}

func wait(t *testing.T, p *Process) Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	exit, err := p.Wait(ctx)
	require.NoError(t, err)
	return exit
}

// lines is a Writer that hands out the lines written to it.
type lines struct {
	*os.File
	scan *bufio.Scanner
}

func newLines(t *testing.T) *lines {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	require.NoError(t, r.SetReadDeadline(time.Now().Add(testTimeout)))
	return &lines{w, bufio.NewScanner(r)}
}

// next returns the next line.
func (l *lines) next(t *testing.T) string {
	t.Helper()
	require.True(t, l.scan.Scan(), "no line came: %v", l.scan.Err())
	return l.scan.Text()
}

// want reads lines until there is one like this.
func (l *lines) want(t *testing.T, line string) {
	t.Helper()
	for l.next(t) != line {
		continue
	}
}

// newTag returns an environment entry by which the processes that have it are found.
func newTag() string { return "STEPMUX_TEST_TAG=" + strconv.FormatUint(rand.Uint64(), 36) }

// tagged returns the pids of the processes that live and were started with the environment entry tag.
func tagged(t *testing.T, tag string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var pids []int
	for _, entry := range entries {
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && strings.Contains("\x00"+string(environ), "\x00"+tag+"\x00") {
			pids = append(pids, atoi(entry.Name()))
		}
	}
	return pids
}

// eventually waits until is returns true, which nothing announces.
func eventually(t *testing.T, is func() bool, what string) {
	t.Helper()
	require.Eventually(t, is, testTimeout, 5*time.Millisecond, what)
}

// ended reports whether process pid has ended, reaped or not.
func ended(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}
