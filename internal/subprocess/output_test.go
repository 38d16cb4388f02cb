package subprocess

import (
	"context"
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
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// lineVariable has a command that this test binary runs in place of its tests.
const lineVariable = "STEPMUX_TEST_SUBPROCESS"

func TestMain(m *testing.M) {
	if line := os.Getenv(lineVariable); line != "" {
		_, err := Output(context.Background(), sh(line), generous)
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var generous = Limit{Time: time.Minute, Bytes: 1000}

func sh(line string) []string { return []string{"/bin/sh", "-c", line} }

func TestOutputReturnsStandardOutput(t *testing.T) {
	t.Setenv("GREETING", "hi")
	out, err := Output(t.Context(), sh(`cat; echo "$GREETING"; echo talk >&2`), generous)
	require.NoError(t, err)
	require.Equal(t, "hi\n", string(out))
	out, err = Output(t.Context(), sh("printf 12345"), Limit{Time: time.Minute, Bytes: 5})
	require.NoError(t, err)
	require.Equal(t, "12345", string(out))
}

func TestFailureHasStandardError(t *testing.T) {
	_, err := Output(t.Context(), sh("echo secret; echo 'no token' >&2; exit 7"), generous)
	require.ErrorContains(t, err, "exit status 7")
	require.ErrorContains(t, err, "no token")
	require.NotContains(t, err.Error(), "secret")

	_, err = Output(t.Context(), sh("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1"), generous)
	require.Less(t, len(err.Error()), 2*maxSaid)

	_, err = Output(t.Context(), []string{"/no/such/program"}, generous)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Output(t.Context(), nil, generous)
	require.ErrorContains(t, err, "empty")
}

func TestCommandThatPrintsTooMuchIsKilled(t *testing.T) {
	for name, line := range map[string]string{
		"one byte too many":      "printf 123456",
		"without end":            "cat /dev/zero",
		"without end, undaunted": "trap '' PIPE TERM; while :; do echo 12345; done",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Output(t.Context(), sh(line), Limit{Time: time.Minute, Bytes: 5})
			require.ErrorContains(t, err, "prints too much: more than 5 bytes")
		})
	}
}

// The command and its children are gone when Output returns.
func TestCommandThatHangsIsKilledWithItsChildren(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	_, err := Output(
		t.Context(), sh("tail -f /dev/null & echo $! >"+pid+".new; mv "+pid+".new "+pid+"; wait"),
		Limit{Time: 300 * time.Millisecond, Bytes: 5},
	)
	require.ErrorContains(t, err, "the program has not ended after 300ms")
	text, err := os.ReadFile(pid)
	if errors.Is(err, os.ErrNotExist) {
		return // it was killed before it wrote the file
	}
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !sshtest.Runs(child) }, time.Minute, time.Millisecond)
}

func TestCommandEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ready := filepath.Join(t.TempDir(), "ready")
	require.NoError(t, syscall.Mkfifo(ready, 0o600))
	done := make(chan error, 1)
	go func() {
		_, err := Output(ctx, sh("echo >"+ready+"; tail -f /dev/null"), generous)
		done <- err
	}()
	_, err := os.ReadFile(ready) // until the command has written to it
	require.NoError(t, err)
	because := errors.New("because")
	cancel(because)
	require.ErrorIs(t, <-done, because)
}

// Symptom: after a SIGKILL of vendor its git went on with a download.
func TestCommandIsKilledWithUs(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	require.NoError(t, syscall.Mkfifo(ready, 0o600))
	us := exec.Command(os.Args[0])
	us.Env = append(os.Environ(), lineVariable+"=echo $$ >"+ready+"; exec tail -f /dev/null >/dev/null")
	require.NoError(t, us.Start())
	text, err := os.ReadFile(ready)
	require.NoError(t, err)
	require.NoError(t, us.Process.Kill())
	require.Error(t, us.Wait())
	command, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(command, syscall.SIGKILL) })
	require.Eventually(t, func() bool { return !sshtest.Runs(command) }, 10*time.Second, time.Millisecond)
}

// A background process that holds the output open does not hold up Output, and the output is not trusted.
func TestBackgroundProcessDoesNotHoldUpOutput(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "end")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err := Output(t.Context(), sh("setsid cat "+fifo+" & echo done"), generous)
	require.ErrorContains(t, err, "holds its output open")
	end, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader, which then ends
	require.NoError(t, err)
	require.NoError(t, end.Close())
}

func TestBackgroundProcessOfTheGroupIsKilled(t *testing.T) {
	id := filepath.Join(t.TempDir(), "id")
	_, err := Output(t.Context(), sh("sleep 600 & echo $! >"+id), generous)
	require.ErrorContains(t, err, "holds its output open")
	text, err := os.ReadFile(id)
	require.NoError(t, err)
	sleeper, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !sshtest.Runs(sleeper) }, 10*time.Second, time.Millisecond)
}

func TestLookFindsOutBeforeTheCommandIsNeeded(t *testing.T) {
	require.NoError(t, Look(sh("exit 1")))
	require.ErrorContains(t, Look([]string{"no-such-program"}), "no-such-program")
	require.Error(t, Look(nil))
}
