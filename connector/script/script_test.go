package script_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

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
	t.Run("in-process", func(t *testing.T) { test(t, sshtest.InProcess(t, embeddedvm.Config{})) })
	t.Run("OpenSSH", func(t *testing.T) { test(t, sshtest.OpenSSH(t)) })
}

// starters are the ways to start a script.
var starters = []struct {
	name string
	of   func(testing.TB, *mux.Conn) script.Starter
}{
	{"session", func(_ testing.TB, conn *mux.Conn) script.Starter { return conn }},
	{"relay", relay},
}

// relay starts a relay, of this very program.
func relay(t testing.TB, conn *mux.Conn) script.Starter {
	t.Helper()
	argv := append(runnertest.Command(t), "steps", "relay", "--temp-dir", sshtest.SocketDir(t))
	r, err := conn.Relay(sshtest.Within(t), mux.Command{Argv: argv})
	require.NoError(t, err)
	return r
}

// onStarters runs test on both servers in both ways.
func onStarters(t *testing.T, test func(*testing.T, script.Starter)) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for _, starter := range starters {
			t.Run(starter.name, func(t *testing.T) { test(t, starter.of(t, connect(t, s))) })
		}
	})
}

//stepmux:acceptance scripts | A script runs by the job's shell; its output is whole, its exit code its own
//stepmux:with connector/script.TestOutputOfAScriptIsWhole, instance.TestRunRunsAShellScriptWithoutAStepRunner
func TestScriptRunsByItsShell(t *testing.T) {
	odd := filepath.Join(t.TempDir(), `a shell's "name" $x`)
	require.NoError(t, os.WriteFile(odd, []byte("#!/bin/sh\nexec sh \"$@\"\n"), 0o700))
	onStarters(t, func(t *testing.T, starter script.Starter) {
		for _, test := range []struct {
			shell []string
			text  string
			code  int
			out   string
		}{
			{nil, "echo hi; echo there >&2", 0, "hi\nthere\n"},
			{[]string{"sh"}, "exit 42", 42, ""},
			{[]string{"env", "HOME=/nonexistent", "bash", "-l"}, "kill -TERM $$", 143, ""}, // no start-up files of this machine
			{[]string{"sh", "-e"}, "false\necho not reached", 1, ""},
			{[]string{odd, "-e"}, "echo odd; false", 1, "odd\n"},
			{
				[]string{"sh", "-c", `printf "%s|" "$@"; cat`, "name", "a b", "it's", `"`, "$HOME", ""},
				"text", 0, "a b|it's|\"|$HOME||text",
			},
			{nil, "cat", 0, ""}, // its stdin is the script, which is at its end
			{nil, "# " + strings.Repeat("x", 12<<20) + "\necho big", 0, "big\n"},
			{nil, `printf 'a\0\377\r\n'`, 0, "a\x00\xff\r\n"},
			{nil, `printf '\036stepmux-end no newline'`, 0, "\x1estepmux-end no newline"},
			{[]string{"true"}, strings.Repeat("never read\n", 1<<16), 0, ""},
			{nil, "", 0, ""},
			// What the machine's own troubles would look like.
			{nil, "exit 3", 3, ""},
			{nil, "exit 126", 126, ""},
			{nil, "exit 127", 127, ""},
			{nil, "exit 1", 1, ""},
			{nil, "nosuchprogram 2>/dev/null", 127, ""},
			{nil, "exec >&- 2>&-; exit 5", 5, ""},
		} {
			var stdout, stderr sshtest.Log
			code, err := script.Run(sshtest.Within(t), starter, script.Script{
				Shell: test.shell, Text: []byte(test.text), Stdout: &stdout, Stderr: &stderr,
			})
			require.NoError(t, err)
			require.Equal(t, test.code, code, "%.200s: %s", test.text, stderr.String())
			require.Equal(t, test.out, stdout.String()+stderr.String())
		}
	})
}

func TestOutputOfAScriptIsWhole(t *testing.T) {
	onStarters(t, func(t *testing.T, starter script.Starter) {
		want := make([]byte, 2<<20)
		for i := range want {
			want[i] = byte(i ^ i>>8 ^ i>>16)
		}
		file := filepath.Join(t.TempDir(), "output")
		require.NoError(t, os.WriteFile(file, want, 0o600))
		var stdout, stderr sshtest.Log
		code, err := script.Run(sshtest.Within(t), starter, script.Script{
			Text: []byte("cat " + file + " & cat " + file + " >&2; wait"), Stdout: &stdout, Stderr: &stderr,
		})
		require.NoError(t, err)
		require.Zero(t, code)
		require.True(t, string(want) == stdout.String(), "%d bytes", len(stdout.String()))
		require.True(t, string(want) == stderr.String(), "%d bytes", len(stderr.String()))
	})
}

// requireMachineError checks that a script failed by the machine's fault, at this stage.
func requireMachineError(t testing.TB, err error, stage string) {
	t.Helper()
	failed := (*script.MachineError)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, stage, failed.Stage, err.Error())
	require.NotEmpty(t, failed.Hint)
	require.Contains(t, err.Error(), failed.Hint)
}

//stepmux:acceptance scripts | If the machine cannot run the script, the build fails as the machine's fault, never with
//stepmux:more an exit code of the script
//stepmux:with connector/script.TestMachineThatCannotRunAScriptIsNamed, connector/script.TestWhatRunsTheScriptIsKilled
func TestShellThatCannotBeStartedIsTheMachinesFault(t *testing.T) {
	// Symptom: a bash that was not installed was the script's exit code 127.
	noInterpreter := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(noInterpreter, []byte("#!/no/interpreter\n"), 0o700))
	onStarters(t, func(t *testing.T, starter script.Starter) {
		for _, shell := range [][]string{
			{"nosuchshell"},
			{"/no/such/shell"},
			{"env", "nosuchshell"},
			{"/etc/passwd"},
			{"/etc"},
			{""},
			{noInterpreter},
			{"it's no shell"},
			{"-c"},
		} {
			_, err := script.Run(sshtest.Within(t), starter, script.Script{Shell: shell, Text: []byte("true")})
			requireMachineError(t, err, "shell")
			if shell[0] != "" {
				require.ErrorContains(t, err, shell[len(shell)-1], "%v", err)
			}
		}
		_, err := script.Run(sshtest.Within(t), starter, script.Script{Shell: []string{"a\x00b"}})
		require.ErrorContains(t, err, "NUL byte")
	})
}

func TestMachineThatCannotRunAScriptIsNamed(t *testing.T) {
	bin := t.TempDir()
	tools := []string{"sh", "bash", "mktemp", "head", "wc", "setsid", "sleep", "grep", "tr", "rm", "cat", "sed"}
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, tool)))
	}
	small := filepath.Join(t.TempDir(), "small") // a login shell under which no file grows: a disk that is full
	require.NoError(t, os.WriteFile(small, []byte("#!/bin/sh\nulimit -f 1\nexec /bin/sh \"$@\"\n"), 0o700))
	silent := filepath.Join(t.TempDir(), "silent")
	require.NoError(t, os.WriteFile(silent, []byte("#!/bin/sh\necho this account is not available >&2\nexit 3\n"), 0o700))
	type fault struct {
		vm    embeddedvm.Config
		text  string
		stage string
		says  string
	}
	faults := map[string]fault{
		"no such tmp": {vm: embeddedvm.Config{Env: []string{"TMPDIR=/no/such/dir"}}, stage: "tmp", says: "/no/such/dir"},
		"full tmp": {
			vm: embeddedvm.Config{Shell: small}, text: strings.Repeat("#", 1<<20), stage: "tmp", says: "make room",
		},
		"no login": {vm: embeddedvm.Config{Shell: silent}, stage: "login", says: "this account is not available"},
	}
	for _, tool := range tools[2:10] {
		without := filepath.Join(t.TempDir(), "without")
		require.NoError(t, os.Mkdir(without, 0o700))
		for _, other := range tools {
			if other != tool {
				require.NoError(t, os.Symlink(filepath.Join(bin, other), filepath.Join(without, other)))
			}
		}
		faults["no "+tool] = fault{vm: embeddedvm.Config{Env: []string{"PATH=" + without}}, stage: "tool", says: tool}
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, sshtest.InProcess(t, f.vm))
			_, err := script.Run(sshtest.Within(t), conn, script.Script{Text: []byte(f.text + "\nexit 3")})
			requireMachineError(t, err, f.stage)
			require.ErrorContains(t, err, f.says)
		})
	}
}

//stepmux:reliability mechanisms | No false success: what ends without telling its end is the machine's failure |
//stepmux:more `connector/script/execution.go`
func TestWhatRunsTheScriptIsKilled(t *testing.T) {
	onStarters(t, func(t *testing.T, starter script.Starter) {
		leashed := ""
		if _, session := starter.(*mux.Conn); session { // its leash is a process of its own, which may yet have to come
			leashed = `until cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q "leash $$ "; do sleep 0.01; done; `
		}
		file := filepath.Join(t.TempDir(), "pids")
		_, err := script.Run(sshtest.Within(t), starter, script.Script{
			Text: []byte(leashed + "echo $$ >" + file + "; kill -KILL $PPID; exec sleep 600"), // its parent runs it
		})
		requireMachineError(t, err, "guard")
		require.ErrorContains(t, err, "lack of memory")
		requireGone(t, pidsIn(t, file))
	})
}

// pidsIn reads the PIDs that a script wrote to a file.
func pidsIn(t testing.TB, file string) []int {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func requireGone(t testing.TB, pids []int) {
	t.Helper()
	require.NotEmpty(t, pids)
	for _, pid := range pids {
		require.Eventually(
			t, func() bool { return !sshtest.Runs(pid) }, sshtest.Bound, 5*time.Millisecond, "process %d", pid)
	}
}

// launch starts a script, and returns a channel that receives the error of Run.
func launch(ctx context.Context, starter script.Starter, s script.Script) <-chan error {
	failed := make(chan error, 1)
	go func() {
		_, err := script.Run(ctx, starter, s)
		failed <- err
	}()
	return failed
}

//stepmux:acceptance scripts | A script that is cancelled or cut off leaves no process; its processes have the whole
//stepmux:more grace
//stepmux:with connector/script.TestCancelledScriptsProcessesHaveTheWholeGrace
//stepmux:with connector/script.TestShellThatReadsNothingCanBeCancelled
func TestScriptThatIsCancelledOrCutOffLeavesNoProcess(t *testing.T) {
	ends := map[string]func(context.CancelFunc, *sshtest.TCPProxy){
		"cancelled": func(cancel context.CancelFunc, _ *sshtest.TCPProxy) { cancel() },
		"cut off":   func(_ context.CancelFunc, proxy *sshtest.TCPProxy) { proxy.Cut() },
	}
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for i := range len(ends) * len(starters) {
			name, starter := slices.Sorted(maps.Keys(ends))[i%len(ends)], starters[i/len(ends)]
			end := ends[name]
			t.Run(name+", by "+starter.name, func(t *testing.T) {
				proxy := sshtest.Proxy(t, s.Addr)
				start := starter.of(t, connect(t, s.Via(t, proxy.Addr())))
				file := filepath.Join(t.TempDir(), "pids")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out sshtest.Log
				failed := launch(ctx, start, script.Script{
					Text: []byte(`trap "echo cleaning up" TERM
echo $$ >` + file + `; sleep 600 & echo $! >>` + file + `
sh -c 'trap "" TERM; while :; do sleep 600; done' & echo $! >>` + file + `
echo started; wait; wait`),
					Grace: time.Second, Stdout: &out, Stderr: &out,
				})
				out.Await(t, "started")
				pids := pidsIn(t, file)
				end(cancel, proxy)
				err := <-failed
				if name == "cancelled" {
					require.Equal(t, context.Canceled, err)
					require.Contains(t, out.String(), "cleaning up")
				} else {
					lost := (*mux.ConnError)(nil)
					require.ErrorAs(t, err, &lost)
				}
				requireGone(t, pids)
			})
		}
	})
}

func TestCancelledScriptsProcessesHaveTheWholeGrace(t *testing.T) {
	// Symptom: the shell died at once, and its child was killed while it cleaned up.
	onStarters(t, func(t *testing.T, starter script.Starter) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out sshtest.Log
		failed := launch(ctx, starter, script.Script{
			Text:   []byte(`sh -c 'trap "sleep 0.3; echo cleaned up; exit" TERM; echo started; while :; do sleep 0.01; done'`),
			Grace:  sshtest.Bound,
			Stdout: &out,
		})
		out.Await(t, "started")
		cancel()
		require.Equal(t, context.Canceled, <-failed)
		require.Contains(t, out.String(), "cleaned up")
	})
}

//stepmux:acceptance scripts | Background processes of a script end with it
//stepmux:with connector/script.TestDaemonThatIsNotFoundDoesNotHoldTheScriptUp
func TestScriptsBackgroundProcessesEndWithIt(t *testing.T) {
	// They hold the output open; one has a group of its own.
	onStarters(t, func(t *testing.T, starter script.Starter) {
		file := filepath.Join(t.TempDir(), "pids")
		var out sshtest.Log
		code, err := script.Run(sshtest.Within(t), starter, script.Script{
			Text: []byte("sleep 600 & echo $! >" + file + "; setsid sh -c 'echo $$ >>" + file + "; sleep 600; true' &\n" +
				"until [ $(wc -l <" + file + ") = 2 ]; do sleep 0.01; done; echo end"),
			Stdout: &out,
		})
		require.NoError(t, err)
		require.Zero(t, code)
		require.Equal(t, "end\n", out.String())
		requireGone(t, pidsIn(t, file))
	})
}

func TestDaemonThatIsNotFoundDoesNotHoldTheScriptUp(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		file := filepath.Join(t.TempDir(), "pids")
		var out sshtest.Log
		code, err := script.Run(sshtest.Within(t), connect(t, s), script.Script{
			// It is in another session and has nothing of the script's environment, but the output.
			Text: []byte("env -i setsid sh -c 'echo $$ >" + file + "; while echo daemon; do sleep 0.05; done' &\n" +
				"until [ -s " + file + " ]; do sleep 0.01; done; echo end; exit 4"),
			Stdout: &out,
		})
		require.NoError(t, err)
		require.Equal(t, 4, code)
		require.Contains(t, out.String(), "end\n")
		for _, pid := range pidsIn(t, file) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // its next line may have ended it
		}
	})
}

func TestShellThatReadsNothingCanBeCancelled(t *testing.T) {
	onStarters(t, func(t *testing.T, starter script.Starter) {
		file := filepath.Join(t.TempDir(), "pids")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out sshtest.Log
		failed := launch(ctx, starter, script.Script{
			Shell:  []string{"sh", "-c", "echo $$ >" + file + "; echo started; exec sleep 600"},
			Text:   make([]byte, 8<<20),
			Stdout: &out,
		})
		out.Await(t, "started")
		cancel()
		require.Equal(t, context.Canceled, <-failed)
		requireGone(t, pidsIn(t, file))
	})
}

//stepmux:acceptance scripts | Many scripts share one connection
func TestManyScriptsAtOnceShareAConnection(t *testing.T) {
	s := sshtest.OpenSSH(t)
	for _, starter := range starters {
		t.Run(starter.name, func(t *testing.T) {
			start := starter.of(t, connect(t, s))
			var running errgroup.Group
			for i := range 60 {
				running.Go(func() error {
					var out sshtest.Log
					code, err := script.Run(sshtest.Within(t), start, script.Script{
						Shell: []string{"sh"}, Text: fmt.Appendf(nil, "echo %d; exit %d", i, i), Stdout: &out,
					})
					if err == nil && (code != i || out.String() != fmt.Sprintln(i)) {
						err = fmt.Errorf("script %d: exit code %d, output %q", i, code, out.String())
					}
					return err
				})
			}
			require.NoError(t, running.Wait())
		})
	}
	require.Equal(t, len(starters), s.TotalConns())
}

func TestScriptOnAFrozenConnectionCanBeCancelled(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for _, starter := range starters {
			for name, text := range map[string]string{"that runs": "", "on its way": strings.Repeat("#", 64<<20)} {
				t.Run(name+", by "+starter.name, func(t *testing.T) {
					proxy := sshtest.Proxy(t, s.Addr)
					conn := connect(t, s.Via(t, proxy.Addr()))
					start := starter.of(t, conn)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if text != "" {
						proxy.Stall()
						defer conn.Close() // or the start would wait for it
						defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
					}
					var out sshtest.Log
					failed := launch(ctx, start, script.Script{
						Text: []byte("echo started; exec sleep 600\n" + text), Grace: 10 * time.Millisecond, Stdout: &out,
					})
					if text == "" {
						out.Await(t, "started")
						proxy.Stall()
						cancel()
					}
					require.Equal(t, context.Canceled, <-failed, "though the keepalive has found nothing yet")
				})
			}
		}
	})
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestScriptWhoseLogFailsIsStopped(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	for _, job := range []script.Script{
		{Text: []byte("while :; do echo x; sleep 0.01; done"), Stdout: brokenWriter{}},
		{Text: []byte("echo x >&2; sleep 600"), Stderr: brokenWriter{}},
	} {
		job.Grace = time.Second
		_, err := script.Run(sshtest.Within(t), connect(t, s), job)
		failed := (*buildlog.Error)(nil)
		require.ErrorAs(t, err, &failed)
	}
}

func TestScriptLeavesNoFile(t *testing.T) {
	tmp := t.TempDir()
	s := sshtest.InProcess(t, embeddedvm.Config{Env: []string{"TMPDIR=" + tmp}})
	conn := connect(t, s)
	for range 5 {
		_, err := script.Run(sshtest.Within(t), conn, script.Script{Text: []byte("exit 3")})
		require.NoError(t, err)
	}
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestScriptEndsWithItsContextThoughTheVMReadsNothing(t *testing.T) {
	// Symptom: a login shell that hung, and a script larger than the window, held Run for ever.
	shell := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700))
	s := sshtest.InProcess(t, embeddedvm.Config{Shell: shell})
	conn := connect(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := launch(ctx, conn, script.Script{Text: make([]byte, 8<<20), Grace: time.Second})
	require.Eventually(t, func() bool { return conn.Stat().Sessions.Open == 1 }, sshtest.Bound, time.Millisecond)
	cancel()
	require.Equal(t, context.Canceled, <-failed)
}

// instead starts line in place of each command, and hands its stderr to tap first.
type instead struct {
	conn *mux.Conn
	line string
	tap  func(p []byte)
}

func (s instead) Start(ctx context.Context, cmd mux.Command) (*mux.Process, error) {
	to := cmd.Stderr
	return s.conn.Start(ctx, mux.Command{Line: s.line, Stderr: writerFunc(func(p []byte) (int, error) {
		s.tap(p)
		return to.Write(p)
	})})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Symptom: a script whose connection was cut in its output was said to have succeeded if its end had come before that,
// on another stream.
func TestScriptWhoseOutputIsCutOffIsLostThoughItsEndIsKnown(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	proxy := sshtest.Proxy(t, s.Addr)
	ended := string(wire.End{Code: 0}.Append(nil, `"$key"`))
	var stdout sshtest.Log
	code, err := script.Run(sshtest.Within(t), instead{
		conn: connect(t, s.Via(t, proxy.Addr())),
		line: `read -r key; printf '\036stepmux-end %s begun\n' "$key"; ` +
			"echo some; echo '" + strings.Replace(strings.TrimSpace(ended), `"$key"`, `'"$key"'`, 1) +
			"' >&2; exec sleep 600",
		tap: func(p []byte) {
			if strings.Contains(string(p), "exit 0") {
				stdout.Await(t, "some")
				proxy.Cut()
			}
		},
	}, script.Script{Text: []byte("a"), Stdout: &stdout})
	lost := (*mux.ConnError)(nil)
	require.ErrorAs(t, err, &lost, "exit code %d", code)
	require.Equal(t, "some\n", stdout.String())
}
