package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

func TestRelayTakesOneSessionForAnyNumberOfProcesses(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		r := relayOf(t, conn)
		require.Same(t, r, relayOf(t, conn), "one for all")
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				p, err := r.Start(sshtest.Within(t), mux.Command{Argv: []string{"sh", "-c", "cat; exit $0", strconv.Itoa(i)}})
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Close()
				_, _ = fmt.Fprint(p, i)
				_ = p.CloseWrite()
				out, err := io.ReadAll(p)
				exit := (*mux.ExitError)(nil)
				errors.As(p.Wait(sshtest.Within(t)), &exit)
				if err != nil || string(out) != strconv.Itoa(i) || i > 0 && (exit == nil || exit.Status != i) {
					t.Errorf("process %d: %q, %v, %v", i, out, err, exit)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, conn.Stat().Sessions.Peak)
		require.Zero(t, conn.Stat().Sessions.Refused)
		require.Equal(t, 1, s.TotalConns())
		eventually(t, func() bool { return conn.Stat().Relayed == 0 && r.Streams() == 0 })
	})
}

// A command that SIGBUS killed had no exit code: SSH has no name for that signal.
func TestRelayTellsEverySignalThatKills(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	killNot := []syscall.Signal{
		syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGURG, syscall.SIGWINCH, 32, 33, // the C library of a test with the race detector keeps the last two
	}
	for n := 1; n <= 64; n++ {
		if slices.Contains(killNot, syscall.Signal(n)) {
			continue
		}
		err := start(t, r, fmt.Sprintf("ulimit -c 0; kill -%d $$", n), nil).Wait(sshtest.Within(t))
		require.Equal(t, 128+n, mux.ExitCode(err), "signal %d: %v", n, err)
	}
}

func TestRelayProcessKeepsStdoutStderrAndExitApart(t *testing.T) {
	// Each floods while the other is not read, and yet all of it comes.
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	var stderr bytes.Buffer
	p := start(t, r, "head -c 3000000 /dev/zero >&2; echo out; head -c 3000000 /dev/zero; exit 7", &stderr)
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Len(t, out, 3000004)
	exit := (*mux.ExitError)(nil)
	require.ErrorAs(t, p.Wait(sshtest.Within(t)), &exit)
	require.Equal(t, 7, exit.Status)
	require.Equal(t, 3000000, stderr.Len())
}

func TestRelayProcessThatNobodyReadsStillTellsItsEnd(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	stuck := make(chan struct{})
	p := start(t, r, "echo one >&2; echo two", writerFunc(func([]byte) { <-stuck }))
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Equal(t, "two\n", string(out), "a stderr that blocks holds up only itself")
	close(stuck)
	require.NoError(t, p.Wait(sshtest.Within(t)))
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestRelayProcessHasTheDirectoryAndEnvironmentItIsGiven(t *testing.T) {
	conn := dial(t, sshtest.OpenSSH(t))
	dir := t.TempDir()
	for name, s := range map[string]starter{"session": conn, "relay": relayOf(t, conn)} {
		for form, cmd := range map[string]mux.Command{
			"argv": {Argv: []string{"sh", "-c", `pwd; echo "$A b"`}},
			"line": {Line: `pwd; echo "$A b"`},
		} {
			cmd.Dir, cmd.Env = dir, []string{"A=it's"}
			p, err := s.Start(sshtest.Within(t), cmd)
			require.NoError(t, err)
			out, err := io.ReadAll(p)
			require.NoError(t, err)
			require.Equal(t, dir+"\nit's b\n", string(out), "%s, %s", name, form)
			require.NoError(t, p.Wait(sshtest.Within(t)))
			require.NoError(t, p.Close())
		}
	}
}

func TestRelayRefusesMissingProgramsDirectoriesAndSockets(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	refused := (*relay.RefusedError)(nil)
	_, err := r.Start(sshtest.Within(t), mux.Command{Argv: []string{"/no/such/program"}})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedNotFound, refused.Reason)
	_, err = r.Start(sshtest.Within(t), mux.Command{Argv: []string{"true"}, Dir: "/no/such/dir"})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedNotFound, refused.Reason)
	_, err = r.DialUnix(sshtest.Within(t), "/var/run/docker.sock")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedForbidden, refused.Reason)
	_, err = r.DialUnix(sshtest.Within(t), filepath.Join(relayTemp(t), "gitlab-runner-steps", "gone", "step-runner.sock"))
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedNotFound, refused.Reason)
	require.NoError(t, r.Err())
	require.Zero(t, r.Streams())
}

func TestRelayProcessEndsWithItsClose(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		r := relayOf(t, dial(t, s))
		p := start(t, r, "echo $$; trap '' TERM; while :; do sleep 1000; done", nil)
		pid := readPID(t, p)
		require.NoError(t, p.Close())
		receive(t, p.Exited())
		eventually(t, func() bool { return !sshtest.Runs(pid) })
		require.NoError(t, r.Err())
	})
}

func TestRelaySignals(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.OpenSSH(t)))
	p := start(t, r, "echo ready; exec sleep 1000", nil)
	_, err := io.ReadFull(p, make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, p.Signal("TERM"))
	exit := (*mux.ExitError)(nil)
	require.ErrorAs(t, p.Wait(sshtest.Within(t)), &exit)
	require.Equal(t, "TERM", exit.Signal)
}

func TestDialReadyTravelsWithTheStart(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	path := buildSocket(t)
	dialed := inBackground(func() error {
		s, err := r.DialReady(sshtest.Within(t), path)
		if err == nil {
			err = s.Close()
		}
		return err
	})
	listenAt(t, path, echo)
	p, err := r.Start(sshtest.Within(t), mux.Command{
		Argv:  []string{"sh", "-c", `echo "step-runner is listening on socket $0" >&2; exec cat`, path},
		Ready: path,
	})
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, receive(t, dialed))
}

func TestDialReadySaysThatTheProcessHasEnded(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	path := buildSocket(t)
	said := func() error {
		p, err := r.Start(sshtest.Within(t), mux.Command{Argv: []string{"sh", "-c", "read -r x; exit 3"}, Ready: path})
		require.NoError(t, err)
		defer p.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		dialed := inBackground(func() error {
			_, err := r.DialReady(ctx, path)
			return err
		})
		eventually(t, func() bool { return r.Streams() == 2 })
		_, err = p.Write([]byte("end\n"))
		require.NoError(t, err)
		return receive(t, dialed)
	}
	const late = "no process listened" // the dial was served after the process had ended
	err := said()
	for errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), late) {
		eventually(t, func() bool { return r.Streams() == 0 })
		err = said()
	}
	refused := (*relay.RefusedError)(nil)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedNotReady, refused.Reason)
}

func TestRelayRequestsEndWithTheirContext(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	ctx, cancel := context.WithCancel(t.Context())
	dialed := inBackground(func() error {
		_, err := r.DialReady(ctx, buildSocket(t))
		return err
	})
	eventually(t, func() bool { return r.Streams() == 1 })
	cancel()
	require.ErrorIs(t, receive(t, dialed), context.Canceled)
	eventually(t, func() bool { return r.Streams() == 0 })
	_, err := r.Start(ctx, mux.Command{Line: "true"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, r.Err())
}

func TestKilledRelayFailsItsStreamsAndIsStartedAnew(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		r := relayOf(t, conn)
		p := start(t, r, "echo $PPID; echo $$; exec sleep 1000", nil)
		relayPID, child := readPID(t, p), readPID(t, p)
		stream, err := r.DialUnix(sshtest.Within(t), listenAt(t, buildSocket(t), echo))
		require.NoError(t, err)
		defer stream.Close()
		read := inBackground(func() error {
			_, err := stream.Read(make([]byte, 1))
			return err
		})
		require.NoError(t, syscall.Kill(relayPID, syscall.SIGKILL))
		requireRelayLost(t, receive(t, read))
		_, err = stream.Write([]byte("x"))
		requireRelayLost(t, err)
		requireRelayLost(t, p.Wait(sshtest.Within(t)))
		_, err = r.Start(sshtest.Within(t), mux.Command{Line: "true"})
		requireRelayLost(t, err)
		receive(t, r.Done())
		requireRelayLost(t, r.Err())
		eventually(t, func() bool { return !sshtest.Runs(child) })
		require.NoError(t, conn.Err(), "the connection has nothing to do with it")

		again := relayOf(t, conn)
		require.NotSame(t, r, again)
		require.NoError(t, start(t, again, "true", nil).Wait(sshtest.Within(t)))
	})
}

func TestRelayThatGetsSIGTERMLosesItsProcesses(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	p := start(t, r, "trap 'exit 0' TERM; echo $PPID; while :; do sleep 0.01; done", nil)
	require.NoError(t, syscall.Kill(readPID(t, p), syscall.SIGTERM))
	requireRelayLost(t, p.Wait(sshtest.Within(t)))
}

func TestProgramThatIsNoRelayIsAnErrorWithItsOutput(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		exit int
		want string
	}{
		"missing":              {"/no/such/stepmux steps relay", 127, "not found"},
		"without that command": {"echo 'unknown command relay' >&2; exit 2", 2, "unknown command relay"},
		"silent end":           {"exit 0", 0, "did not start"},
		"another program":      {"echo hello world; head -n 1", 0, "hello world"},
		"another version":      {"read -r x; echo stepmux-relay/77; exec cat >/dev/null", 0, "speaks version 77"},
		"a flood":              {"yes", 0, "no relay's hello"},
		"hello, then garbage":  {"echo stepmux-relay/1; yes", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
			r, err := conn.Relay(sshtest.Within(t), mux.Command{Line: test.line})
			if test.want == "" {
				require.NoError(t, err)
				receive(t, r.Done())
				err = r.Err()
				test.want = "makes no sense"
			}
			failed := (*relay.Error)(nil)
			require.ErrorAs(t, err, &failed)
			require.Equal(t, test.exit, failed.ExitCode)
			require.ErrorContains(t, err, test.want)
			require.NoError(t, conn.Err())
			require.NoError(t, start(t, conn, "true", nil).Wait(sshtest.Within(t)), "the connection goes on")
		})
	}
}

// Symptom: the start of a relay that was frozen before its hello never ended, as sshd confirms the end of its channel
// only when the program has ended.
func TestRelayThatNeverSaysHelloIsGivenUp(t *testing.T) {
	mux.SetRelayStartTime(t, 200*time.Millisecond)
	conn := dial(t, sshtest.OpenSSH(t))
	_, err := conn.Relay(sshtest.Within(t), mux.Command{Argv: []string{"sleep", "20"}}) // nobody ends it
	requireRelayLost(t, err)
	require.ErrorContains(t, err, "the relay did not say hello within 200ms")
	p, err := conn.Start(sshtest.Within(t), mux.Command{Argv: []string{"true"}})
	require.NoError(t, err, "the connection is well")
	require.NoError(t, p.Wait(sshtest.Within(t)))
	require.NoError(t, conn.Close())
	require.False(t, running("relay.(*link).Read"))
}

// Symptom: all builds that waited for a relay were lost when it was killed before it said hello.
//
//stepmux:faults users | A relay that is killed before it says hello loses all builds that wait for it
func TestARelayThatIsKilledWhileItStartsIsStartedOnceMore(t *testing.T) {
	conn := dial(t, sshtest.OpenSSH(t))
	cmd, starts := relayCommand(t), filepath.Join(t.TempDir(), "starts")
	once := "echo >>" + starts + "; [ $(wc -l <" + starts + ") -gt 1 ] || kill -9 $$; exec "
	cmd.Line, cmd.Argv = once+strings.Join(cmd.Argv, " "), nil
	r, err := conn.Relay(sshtest.Within(t), cmd)
	require.NoError(t, err)
	require.NoError(t, start(t, r, "true", nil).Wait(sshtest.Within(t)))

	_, err = conn.Relay(sshtest.Within(t), mux.Command{Line: "echo >>" + starts + "; kill -9 $$"})
	requireRelayLost(t, err)
	require.ErrorContains(t, err, "ended by signal KILL")
	text, err := os.ReadFile(starts)
	require.NoError(t, err)
	require.Equal(t, "\n\n\n\n", string(text), "each was started twice")
}

func TestGreetingOfALoginShellBeforeARelayIsIgnored(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	cmd := relayCommand(t)
	cmd.Line, cmd.Argv = "echo 'Welcome to Debian'; printf '$ '; exec "+strings.Join(cmd.Argv, " "), nil
	r, err := conn.Relay(sshtest.Within(t), cmd)
	require.NoError(t, err)
	require.NoError(t, start(t, r, "true", nil).Wait(sshtest.Within(t)))
}

func TestShutdownWaitsForRelayedStreamsAndNotForTheRelay(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := start(t, relayOf(t, conn), "exec cat", nil)
	down := inBackground(func() error { return conn.Shutdown(sshtest.Within(t)) })
	eventually(t, func() bool {
		_, err := conn.Start(sshtest.Within(t), mux.Command{Line: "true"})
		return errors.Is(err, mux.ErrClosed)
	})
	_, err := p.Write([]byte("still here"))
	require.NoError(t, err)
	_, err = io.ReadFull(p, make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, receive(t, down))
}

func TestRelayedProcessHasNoStderrGoroutineUntilItWritesSome(t *testing.T) {
	r := relayOf(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{})))
	var stderr bytes.Buffer
	p := start(t, r, "while read -r line; do echo $line >&2; echo; done", &stderr)
	for _, line := range []string{"one\n", "two\n"} {
		eventually(t, func() bool { return !running("relay.(*process).pumpStderr") })
		_, err := p.Write([]byte(line))
		require.NoError(t, err)
		_, err = io.ReadFull(p, make([]byte, 1))
		require.NoError(t, err)
	}
	require.NoError(t, p.CloseWrite())
	require.NoError(t, p.Wait(sshtest.Within(t)))
	require.Equal(t, "one\ntwo\n", stderr.String())
}

func TestManyRelayedStreamsCostLittle(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	r := relayOf(t, conn)
	before, began := runtime.NumGoroutine(), processorTime(t)
	const n = 200
	for range n {
		start(t, r, "exec cat", nil)
	}
	require.LessOrEqual(t, runtime.NumGoroutine()-before, 2*n)
	// Symptom: all their readers spun until each had been ended: with the race detector half a minute in most runs.
	started := processorTime(t)
	require.NoError(t, conn.Close())
	require.Less(t, processorTime(t)-started, started-began, "their end takes less than their start")
}

// processorTime returns how long this process has run on processors.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// readPID reads a line with a number from p.
func readPID(t testing.TB, p *mux.Process) int {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		_, err := io.ReadFull(p, b)
		require.NoError(t, err)
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	pid, err := strconv.Atoi(string(line))
	require.NoError(t, err)
	return pid
}

func requireRelayLost(t testing.TB, err error) {
	t.Helper()
	lost := (*relay.Error)(nil)
	require.ErrorAs(t, err, &lost)
	require.NotErrorIs(t, err, io.EOF, "a loss must not look like an end")
}
