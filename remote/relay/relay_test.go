package relay

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestRelayEndsWithItsStdin(t *testing.T) {
	r := startRelay(t)
	r.sh(t, "cat")
	require.NoError(t, r.stdin.Close())
	r.requireExit(t, 0, "")
}

func TestRelayLeavesNothingWhenItsStdinEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *relayed){
		"stdin": func(t *testing.T, r *relayed) { require.NoError(t, r.stdin.Close()) },
		"SIGTERM": func(t *testing.T, r *relayed) {
			require.NoError(t, r.cmd.Process.Signal(unix.SIGTERM))
		},
		"half a frame": func(t *testing.T, r *relayed) {
			_, err := r.stdin.Write([]byte{0, 0, 0})
			require.NoError(t, err)
			require.NoError(t, r.stdin.Close())
		},
		"nonsense": func(t *testing.T, r *relayed) {
			_, err := r.stdin.WriteString(remotetest.Repeat(100))
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := launchRelay(t, 50*time.Millisecond)
			r.manager = manage(t, r.stdin, r.stdout(t))
			var pids []int
			for _, script := range []string{
				`echo $$; exec sleep 1000`,
				`trap '' TERM HUP; echo $$; while :; do sleep 0.01; done`,
				`trap '' TERM; setsid sh -c 'echo $$; sleep 1000 & setsid sleep 1000' & wait`,
				`echo $$; yes`,
				`echo $$; kill -STOP $$`,
			} {
				c := r.sh(t, script)
				pids = append(pids, c.pid(t))
			}
			_, path := listenIn(t, r.tmp, "b")
			r.connectReq(t, wire.RelayConnect{Path: path}).granted(t)
			r.connectReq(t, wire.RelayConnect{Path: remotetest.SocketIn(t, r.tmp, "c"), Wait: time.Hour})
			pids = append(pids, atois(r.children(t))...)
			require.GreaterOrEqual(t, len(pids), 10)
			end(t, r)
			<-r.exited
			for _, pid := range pids {
				require.False(t, running(pid))
			}
			if code := r.cmd.ProcessState.ExitCode(); name == "nonsense" {
				require.Equal(t, 1, code)
				require.Contains(t, r.stderr.String(), "relay: stdin does not follow the protocol")
			} else if name != "SIGTERM" {
				require.Equal(t, 0, code, "%s", r.stderr)
			}
		})
	}
}

func atois(texts []string) (all []int) {
	for _, text := range texts {
		var n int
		if _, err := fmt.Sscan(text, &n); err == nil {
			all = append(all, n)
		}
	}
	return all
}

func TestRelayThatEndsReportsNoExitOfARunningProcess(t *testing.T) {
	// Symptom: a script that ended because of that was a script that failed, or one that succeeded.
	r := startRelay(t)
	c := r.sh(t, `trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.01; done`)
	pid := c.pid(t)
	waiting := r.connectReq(t, wire.RelayConnect{Path: remotetest.SocketIn(t, r.tmp, "c"), Wait: time.Hour})
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out)

	require.NoError(t, r.cmd.Process.Signal(unix.SIGTERM))
	for _, lost := range []*call{c, waiting} {
		said, _ := io.ReadAll(lost)
		require.Empty(t, said)
	}
	r.requireExit(t, 1, "relay: ")
	require.False(t, running(pid))
}

func TestRelayThatIsKilledTakesItsProcessesAlong(t *testing.T) {
	r := startRelay(t)
	sleep := r.sh(t, "echo $$; exec sleep 1000")
	pid := sleep.pid(t)
	path := remotetest.SocketIn(t, r.tmp, "42")
	c := r.connectReq(t, wire.RelayConnect{Path: path, Wait: time.Hour})
	r.startReq(t, wire.RelayStart{
		Argv: []string{
			os.Args[0],
			path,
		}, Env: []string{remotetest.RoleVar + "=serve", "GORACE=atexit_sleep_ms=0"}, Ready: path,
	}).granted(t)
	c.granted(t)
	require.NoError(t, r.cmd.Process.Kill())
	<-r.exited
	remotetest.Eventually(t, func() bool { return !running(pid) }, "by SIGTERM")
	remotetest.Eventually(t, func() bool {
		_, err := os.Lstat(filepath.Dir(path))
		return errors.Is(err, os.ErrNotExist)
	}, "serve removes its directory")
}

func TestRelaySweepsTheDirectoryOfAKilledServe(t *testing.T) {
	r := launchRelay(t, time.Minute)
	base := filepath.Join(r.tmp, wire.SocketBase)
	require.NoError(t, os.MkdirAll(filepath.Join(base, "dead", "work"), 0o700))
	_, path := listenIn(t, r.tmp, "alive")
	r.manager = manage(t, r.stdin, r.stdout(t))
	remotetest.Eventually(t, func() bool { return fmt.Sprint(remotetest.Names(t, base)) == "[alive]" }, "swept")
	require.FileExists(t, path)
}

func TestRelayThatEndsRemovesTheDirectoriesOfThoseItKills(t *testing.T) {
	r := startSweptRelay(t)
	dir := filepath.Join(r.tmp, wire.SocketBase, "42")
	r.sh(t, `mkdir -m 700 "$1" && exec 9<"$1" && flock 9 && echo $$ && exec sleep 1000`, dir).pid(t)
	require.NoError(t, r.stdin.Close())
	r.requireExit(t, 0, "")
	require.NoDirExists(t, dir)
}

func TestRelayNotesADirectoryItCannotSweep(t *testing.T) {
	r := launchRelay(t, time.Minute)
	require.NoError(t, os.Symlink("/", filepath.Join(r.tmp, wire.SocketBase)))
	r.manager = manage(t, r.stdin, r.stdout(t))
	remotetest.Eventually(t, func() bool { return r.stderr.String() != "" }, "a notice")
	require.Contains(t, r.stderr.String(), "is a symbolic link")
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out, "and no more than that")
}

func TestRelayShakesHandsFirst(t *testing.T) {
	for name, test := range map[string]struct {
		hello, out, want string
	}{
		"garbage": {"GET / HTTP/1.1\r\n", "", `"G" is no hello: the relay is started by a manager`},
		"another version": {
			wire.ManagerHello(2), wire.RelayHello(1), "the manager speaks version 2 of the protocol, this program version 1",
		},
		"a relay's hello": {wire.RelayHello(1), "", "started by a manager"},
		"nothing":         {"", "", "stdin ended before a manager said hello"},
		"half of it":      {"stepmux-man", "", "stdin ended before a manager said hello"},
	} {
		t.Run(name, func(t *testing.T) {
			r := launchRelay(t, time.Minute)
			out := r.stdout(t)
			_, err := r.stdin.WriteString(test.hello)
			require.NoError(t, err)
			require.NoError(t, r.stdin.Close())
			said, err := io.ReadAll(out)
			require.NoError(t, err)
			require.Equal(t, test.out, string(said))
			r.requireExit(t, 1, test.want)
		})
	}
}

func TestRelayNamesItsProgramBeforeItsHello(t *testing.T) {
	stdin, in, err := os.Pipe()
	require.NoError(t, err)
	out, stdout, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	_, err = in.WriteString(wire.ManagerHello(wire.RelayVersion))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	cfg := Config{TempDir: t.TempDir(), Version: "v1.2.3"}
	require.NoError(t, Run(t.Context(), stdin, stdout, io.Discard, cfg))
	stdin.Close()
	stdout.Close()
	said := bufio.NewReader(out)
	version, noise, err := wire.FindRelayHello(said)
	require.NoError(t, err)
	require.Equal(t, wire.RelayVersion, version)
	require.Equal(t,
		wire.Program{Name: wire.ProgramName, Version: "v1.2.3", Platform: runtime.GOOS + "/" + runtime.GOARCH, Linger: true},
		wire.FindProgramHello(noise))
}

// relayHere runs a relay in this process, which is to start nothing, and returns its manager's end, and its
// error once it has ended.
func relayHere(t testing.TB, ctx context.Context, bounds limits, fork proc.ForkExec) ( //nolint:revive // t first
	in, out *os.File, ended <-chan error,
) {
	t.Helper()
	stdin, in, err := os.Pipe()
	require.NoError(t, err)
	out, stdout, err := os.Pipe()
	require.NoError(t, err)
	result := make(chan error, 1)
	tmp := t.TempDir()
	go func() {
		defer stdin.Close()
		defer stdout.Close()
		result <- run(ctx, stdin, stdout, io.Discard, Config{TempDir: tmp, Grace: -1}, bounds, fork)
	}()
	t.Cleanup(func() {
		in.Close()
		out.Close()
	})
	return in, out, result
}

func startNothing(string, []string, *syscall.ProcAttr) (int, error) { return 0, unix.EPERM }

func TestRelayEndsWithoutASignOfLife(t *testing.T) {
	bounds := defaultLimits
	bounds.interval, bounds.timeout = time.Millisecond, time.Millisecond
	in, _, ended := relayHere(t, t.Context(), bounds, startNothing)
	_, err := in.WriteString(wire.ManagerHello(wire.RelayVersion)) // and nothing after it: no yamux that answers
	require.NoError(t, err)
	require.ErrorContains(t, <-ended, "the manager gave no sign of life for")
}

func TestRelayLivesWithAManagerThatIsSilentAndAlive(t *testing.T) {
	bounds := defaultLimits
	bounds.interval = time.Millisecond
	in, out, ended := relayHere(t, t.Context(), bounds, startNothing)
	counted := &countingWriter{WriteCloser: in, enough: make(chan struct{}), left: 50}
	manage(t, counted, out)
	<-counted.enough // of answers to pings
	require.Empty(t, ended)
	require.NoError(t, in.Close())
	require.NoError(t, <-ended)
}

// countingWriter counts writes.
type countingWriter struct {
	io.WriteCloser
	mu     sync.Mutex // guards the following
	left   int
	enough chan struct{} // closed once left is 0
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	if w.left--; w.left == 0 {
		close(w.enough)
	}
	w.mu.Unlock()
	return w.WriteCloser.Write(p)
}

func TestRelayEndsWithItsContext(t *testing.T) {
	for name, hello := range map[string]string{
		"before the hello": "", "after the hello": wire.ManagerHello(wire.RelayVersion),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			in, out, ended := relayHere(t, ctx, defaultLimits, startNothing)
			if hello != "" {
				manage(t, in, out)
			}
			because := errors.New("SIGTERM")
			cancel(because)
			require.ErrorIs(t, <-ended, because)
		})
	}
}

func TestRelayEndsWhenItsStdoutDoes(t *testing.T) {
	in, out, ended := relayHere(t, t.Context(), defaultLimits, startNothing)
	m := manage(t, in, nopCloser{out})
	require.NoError(t, out.Close())
	_, _ = m.session.OpenStream() // has to be answered
	require.NoError(t, <-ended, "the manager has gone")
}

func TestRelayEndsIfItsManagerReadsNothing(t *testing.T) {
	bounds := defaultLimits
	bounds.stall, bounds.streams = 50*time.Millisecond, 1
	in, _, ended := relayHere(t, t.Context(), bounds, startNothing)
	_, err := in.WriteString(wire.ManagerHello(wire.RelayVersion))
	require.NoError(t, err)
	for id := uint32(1); err == nil; id += 2 { // each is answered
		_, err = in.Write(binary.BigEndian.AppendUint32([]byte{0, 1, 0, 1}, id))
		if err == nil {
			_, err = in.Write(make([]byte, 4))
		}
	}
	require.ErrorContains(t, <-ended, "has stopped reading")
}

type nopCloser struct{ *os.File }

func (nopCloser) Close() error { return nil }

func TestRelayTakesSoManyStreamsAndNoMore(t *testing.T) {
	bounds := defaultLimits
	bounds.streams = 2
	in, out, ended := relayHere(t, t.Context(), bounds, startNothing)
	m := manage(t, in, out)
	var open []*yamux.Stream
	for range 2 {
		s, err := m.session.OpenStream()
		require.NoError(t, err)
		open = append(open, s)
	}
	m.startReq(t, wire.RelayStart{Line: "true"}).refused(t, wire.RelayBusy, "reached its limit of streams")
	require.NoError(t, open[0].Close())
	remotetest.Eventually(t, func() bool {
		c := m.startReq(t, wire.RelayStart{Line: "true"})
		defer c.Close()
		response, err := wire.ReadRelayResponse(c)
		require.NoError(t, err)
		return response.Code == wire.RelayFailed // of startNothing
	}, "room again")
	require.NoError(t, in.Close())
	require.NoError(t, <-ended)
}

func TestRelayDoesNotWaitForARequestForEver(t *testing.T) {
	bounds := defaultLimits
	bounds.request = time.Millisecond
	in, out, ended := relayHere(t, t.Context(), bounds, startNothing)
	m := manage(t, in, out)
	m.raw(t, []byte{1, 0, 0, 9, 0}).refused(t, wire.RelayInvalid, "no whole request came within 1ms")
	require.NoError(t, in.Close())
	require.NoError(t, <-ended)
}

func TestRelayNeedsAnAbsoluteTemporaryDirectory(t *testing.T) {
	err := Run(t.Context(), nil, nil, io.Discard, Config{TempDir: "tmp"})
	require.EqualError(t, err, `temporary directory "tmp" is not an absolute path`)
	require.ErrorContains(t, Run(t.Context(), nil, nil, io.Discard, Config{}), "stdin or stdout is missing")
}
