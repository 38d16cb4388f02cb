package connector_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// lease is a share of a connection that counts its releases.
type lease struct {
	conn     *mux.Conn
	released atomic.Int32
}

func (l *lease) Conn() connector.Conn { return l.conn }
func (l *lease) Release()             { l.released.Add(1) }

// build is a Connector under test with its parts.
type build struct {
	*connector.Connector
	vm    *connector.VM
	lease *lease
	log   *sshtest.Log
	tmp   string
}

// runner writes a stand-in for a stepmux: a shell script that answers --version and else runs body. With it a test
// chooses the output and the end of a serve.
func runner(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runner.sh")
	const version = `if [ "$1" = --version ]; then
	printf 'Version: 1\nName: stepmux\nProtocol: 1\nOS/Arch: linux/amd64\n'; exit
fi`
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+version+"\nsocket=$4\n"+body+"\n"), 0o700))
	return path
}

func newBuild(t testing.TB, s *sshtest.Server, id, command string, change func(*connector.Config)) *build {
	t.Helper()
	b := &build{lease: &lease{conn: connect(t, s)}, log: &sshtest.Log{}, tmp: sshtest.SocketDir(t)}
	cfg := connector.Config{
		Lease:   b.lease,
		VM:      new(connector.VM),
		BuildID: id,
		Runner:  []string{command},
		Options: vmconfig.Options{TempDir: b.tmp},
		Route:   connector.Streamlocal, // no probe: a stand-in has no socket
		Log:     b.log,
	}
	if change != nil {
		change(&cfg)
	}
	b.vm = cfg.VM
	var err error
	b.Connector, err = connector.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

// program returns the VM's step runner.
func (b *build) program() program.Program { return b.vm.Program() }

func connect(t testing.TB, s *sshtest.Server) *mux.Conn {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, &mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// onServers runs test on a VM in miniature and on a real sshd.
func onServers(t *testing.T, test func(*testing.T, *sshtest.Server)) {
	t.Run("in-process", func(t *testing.T) { test(t, embedded(t)) })
	t.Run("OpenSSH", func(t *testing.T) { test(t, sshtest.OpenSSH(t)) })
}

func embedded(t testing.TB) *sshtest.Server { return sshtest.InProcess(t, embeddedvm.Config{}) }

// untilLeash ends a stand-in as its leash wants it.
const untilLeash = "exec cat >/dev/null"

//stepmux:acceptance connection | Connect waits for the ready marker, however it comes, and returns
//stepmux:with internal/wire.TestMarkerScannerFindsTheReadyLine
func TestConnectWaitsForTheReadyMarkerHoweverItComes(t *testing.T) {
	for name, body := range map[string]string{
		"plain":            `echo "step-runner is listening on socket $socket" >&2`,
		"with \\r":         `printf 'step-runner is listening on socket %s\r\n' "$socket" >&2`,
		"after a greeting": `printf 'Welcome! 1 update\nMOTD step-runner is listening on socket %s\n' "$socket" >&2`,
		"in pieces": `printf 'step-runner is listen' >&2; printf 'ing on socket ' >&2
printf '%s' "$socket" >&2; echo >&2`,
		"twice": `echo "step-runner is listening on socket $socket" >&2
echo "step-runner is listening on socket $socket" >&2`,
		"begun twice":          `echo "step-runner is listening on step-runner is listening on socket $socket" >&2`,
		"text on stdout":       `echo noise; echo "step-runner is listening on socket $socket" >&2`,
		"in the user's base":   `echo "step-runner is listening on socket ${socket%/*/*}-1000/b1/step-runner.sock" >&2`,
		"after a long silence": `head -c 300000 /dev/zero >&2; echo "step-runner is listening on socket $socket" >&2`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuild(t, embedded(t), "b1", runner(t, body+"\n"+untilLeash), nil)
			dial, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.NotNil(t, dial)
			require.NoError(t, b.Close(sshtest.Within(t)))
			require.EqualValues(t, 1, b.lease.released.Load())
		})
	}
}

//stepmux:acceptance connection | A serve that ends before that is an error with its exit code and last words
func TestConnectSaysWhyServeEndedEarly(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		code int
		want []string
	}{
		"exit status": {"echo 'cannot do it' >&2; exit 7", 7, []string{"exit status 7", "cannot do it"}},
		"exit 0":      {"exit 0", 0, []string{"exit status 0"}},
		"signal":      {"kill -TERM $$", 143, []string{"143"}},
		"killed":      {"kill -KILL $$", 137, []string{"out of memory?"}},
		"no marker but its beginning": {
			"printf 'step-runner is listening on socket /x' >&2; exit 3", 3,
			[]string{"exit status 3", "step-runner is listening on socket /x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuild(t, embedded(t), "b1", runner(t, test.body), nil)
			_, err := b.Connect(sshtest.Within(t))
			ended := (*connector.ServeError)(nil)
			require.ErrorAs(t, err, &ended)
			require.Equal(t, test.code, ended.ExitCode)
			require.False(t, ended.Ready)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestConnectToAVMWithoutTheBinaryNamesItAndSaysWhatToDo(t *testing.T) {
	b := newBuild(t, embedded(t), "b1", "/opt/no such dir/stepmux", nil)
	_, err := b.Connect(sshtest.Within(t))
	ended := (*connector.ServeError)(nil)
	require.ErrorAs(t, err, &ended)
	require.Equal(t, 127, ended.ExitCode)
	require.ErrorContains(t, err, `is "/opt/no such dir/stepmux" installed on the VM`)
}

//stepmux:acceptance connection | A serve that listens elsewhere is refused
func TestConnectRefusesAServeThatListensElsewhere(t *testing.T) {
	for _, path := range []string{
		"/tmp/evil.sock", "${socket}x", "${socket%/*/*}-root/b1/step-runner.sock", "${socket%/*/*}/b2/step-runner.sock",
	} {
		body := `echo "step-runner is listening on socket ` + path + `" >&2` + "\n" + untilLeash
		b := newBuild(t, embedded(t), "b1", runner(t, body), nil)
		_, err := b.Connect(sshtest.Within(t))
		require.ErrorContains(t, err, "instead of", path)
	}
}

//stepmux:acceptance connection | If the context ends first, the error is the context's cause
func TestConnectReturnsTheContextsErrorWheneverItEnds(t *testing.T) {
	for name, body := range map[string]string{
		"while serve is silent": untilLeash,
		"while serve ends":      "exit 1",
		"while it is ready":     `echo "step-runner is listening on socket $socket" >&2` + "\n" + untilLeash,
	} {
		t.Run(name, func(t *testing.T) {
			s := embedded(t)
			for i := range 20 {
				b := newBuild(t, s, "b1", runner(t, body), nil)
				ctx, cancel := context.WithCancel(t.Context())
				stop := time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
				_, err := b.Connect(ctx)
				ended := (*connector.ServeError)(nil)
				if ctx.Err() != nil && err != nil && !errors.As(err, &ended) {
					require.Equal(t, context.Canceled, err)
				}
				stop.Stop()
				cancel()
				require.NoError(t, b.Close(sshtest.Within(t)))
			}
		})
	}
	b := newBuild(t, embedded(t), "b1", runner(t, untilLeash), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Connect(ctx)
	require.Equal(t, context.Canceled, err)
}

//stepmux:faults executor | A step runner that is never ready is waited for without end
//stepmux:acceptance connection | Connect gives up on a serve that is never ready
func TestConnectGivesUpOnAServeThatIsNeverReady(t *testing.T) {
	s := embedded(t)
	conn, vm := connect(t, s), new(connector.VM)
	command := runner(t, "case $socket in */b0/*) exit;; esac; echo still thinking >&2\n"+untilLeash)
	share := func(c *connector.Config) { c.Lease, c.VM = &lease{conn: conn}, vm }
	// What the command is takes its time to find out; for the build that is to wait only for a moment it is known.
	_, err := newBuild(t, s, "b0", command, share).Connect(sshtest.Within(t))
	require.ErrorContains(t, err, "exit status 0")
	b := newBuild(t, s, "b1", command, func(c *connector.Config) {
		share(c)
		c.ReadyTimeout = 2 * time.Second
	})
	_, err = b.Connect(sshtest.Within(t))
	require.ErrorContains(t, err, "was not ready within 2s")
	require.ErrorContains(t, err, "still thinking")
	require.NoError(t, b.Close(sshtest.Within(t)))
}

func TestConnectAfterALostConnectionSaysSo(t *testing.T) {
	s := embedded(t)
	proxy := sshtest.Proxy(t, s.Addr)
	b := newBuild(t, s.Via(t, proxy.Addr()), "b1", runner(t, "echo up >&2\n"+untilLeash), nil)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Connect(sshtest.Within(t))
		failed <- err
	}()
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "up") }, sshtest.Bound, time.Millisecond)
	proxy.Cut()
	lost := (*mux.ConnError)(nil)
	require.ErrorAs(t, <-failed, &lost)
	require.NoError(t, b.Close(sshtest.Within(t)))
	require.EqualValues(t, 1, b.lease.released.Load())
}

//stepmux:acceptance connection | Each line that serve prints goes to the build's log with a prefix; bytes of the bridge
//stepmux:more do not go there
//stepmux:with instance.TestTheStepRunnersOwnWordsAreMarkedInTheLog
func TestServesOutputGoesToTheLogLessTheMarker(t *testing.T) {
	b := newBuild(t, embedded(t), "b1", runner(t,
		`echo before >&2; echo out; echo "step-runner is listening on socket $socket" >&2
echo after >&2; printf 'no newline' >&2
`+untilLeash), nil)
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, b.Close(sshtest.Within(t)))
	got := b.log.String()
	for _, want := range []string{"before\n", "out\n", "after\n", "no newline"} {
		require.Contains(t, got, want)
	}
	require.NotContains(t, got, "is listening")
}

func TestCloseStopsServeByItsLeashAndReleasesTheLeaseLast(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	b := newBuild(t, embedded(t), "b1", runner(t, fmt.Sprintf(
		`echo "step-runner is listening on socket $socket" >&2; cat >/dev/null; echo bye >%s`, gone)), nil)
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.Zero(t, b.lease.released.Load())
	require.NoError(t, b.Close(sshtest.Within(t)))
	require.FileExists(t, gone, "serve had ended when Close returned")
	require.EqualValues(t, 1, b.lease.released.Load())
	require.NoError(t, b.Close(sshtest.Within(t)), "again")
	require.EqualValues(t, 1, b.lease.released.Load())
	_, err = b.Connect(sshtest.Within(t))
	require.ErrorIs(t, err, connector.ErrClosed)
}

//stepmux:faults executor | The end of a build has no deadline: a frozen VM hangs it past its own timeout
//stepmux:with mux.TestCloseOfAStreamDoesNotWaitForAFrozenPeer
//stepmux:acceptance connection | Ending a build takes a bounded time, also if the VM does not answer
//stepmux:with connector/script.TestScriptOnAFrozenConnectionCanBeCancelled
//stepmux:reliability promises | The end of a build takes a bounded time, whatever its VM does
//stepmux:with mux.TestCloseOfAStreamDoesNotWaitForAFrozenPeer, instance.TestACancelledBuildDoesNotWaitForALogThatBlocks
//stepmux:reliability mechanisms | Close returns within its bound | `connector/connector.go`
func TestCloseGivesUpOnAServeThatDoesNotEnd(t *testing.T) {
	// Symptom: Close hung on a real sshd, which confirms the close of a channel only when its process is
	// gone.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		pid := filepath.Join(t.TempDir(), "pid")
		command := runner(t, `echo $$ >`+pid+`; echo "step-runner is listening on socket $socket" >&2; exec sleep 600`)
		b := newBuild(t, s, "b1", command, func(c *connector.Config) { c.StopTimeout = 200 * time.Millisecond })
		_, err := b.Connect(sshtest.Within(t))
		require.NoError(t, err)
		require.ErrorContains(t, b.Close(sshtest.Within(t)), "it is not gone")
		require.EqualValues(t, 1, b.lease.released.Load())
		text, err := os.ReadFile(pid)
		require.NoError(t, err)
		p, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(p, syscall.SIGKILL))
	})
}

//stepmux:acceptance connection | The directory of a serve that was killed is removed
func TestDirectoryOfAKilledServeIsRemoved(t *testing.T) {
	b := newBuild(t, embedded(t), "b1", runner(t,
		`mkdir -p "${socket%/*}"; touch "${socket%/*}/left"
echo "step-runner is listening on socket $socket" >&2; read x; kill -KILL $$`), nil)
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	dir := filepath.Join(b.tmp, "gitlab-runner-steps", "b1")
	require.DirExists(t, dir)
	require.NoError(t, b.Close(sshtest.Within(t)))
	require.NoDirExists(t, dir)
	left := b.Left()
	require.Len(t, left, 1, "it knows no steps end")
	require.Contains(t, left[0], "unknown: steps end: ")
}

// The steps ran, and the script was left out without a word: the job succeeded.
func TestAJobHasNotBothStepsAndAScript(t *testing.T) {
	c, err := connector.New(connector.Config{Lease: &lease{}, VM: new(connector.VM), BuildID: "b1"})
	require.NoError(t, err)
	_, err = c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{script: a}]"), Script: "b"}},
		nil,
	)
	require.ErrorAs(t, err, new(*connector.RequestError))
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := connector.Config{Lease: &lease{}, VM: new(connector.VM), BuildID: "b1"}
	for want, change := range map[string]func(*connector.Config){
		"invalid build ID":     func(c *connector.Config) { c.BuildID = "../x" },
		"at most 64":           func(c *connector.Config) { c.BuildID = strings.Repeat("x", 300) },
		"not an absolute path": func(c *connector.Config) { c.TempDir = "tmp" },
		"a unix socket allows": func(c *connector.Config) { c.TempDir = "/" + strings.Repeat("long", 30) },
		"unknown route":        func(c *connector.Config) { c.Route = "pigeon" },
		"Lease is nil":         func(c *connector.Config) { c.Lease = nil },
		"VM is nil":            func(c *connector.Config) { c.VM = nil },
		"time in Config":       func(c *connector.Config) { c.ReadyTimeout = -time.Second },
		"a time in Config":     func(c *connector.Config) { c.StopTimeout = -time.Second },
		"is negative":          func(c *connector.Config) { c.LogTimeout = -time.Second },
	} {
		cfg := good
		change(&cfg)
		_, err := connector.New(cfg)
		require.ErrorContains(t, err, want)
	}
}
