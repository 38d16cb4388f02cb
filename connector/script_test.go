package connector_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/internal/vmtest"
	"github.com/stepmux/stepmux/mux"
)

func connect(t testing.TB, s *sshtest.Server) *mux.Conn {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, &mux.Config{
		User:     s.User,
		Auth:     []mux.Auth{mux.Key("of the test", s.Signer)},
		HostKeys: mux.PinnedHostKeys(s.HostKey),
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

func TestScriptRunsByItsShell(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := connect(t, s)
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
			{nil, "cat", 0, ""}, // its stdin is the script, which is at its end
			{nil, "# " + strings.Repeat("x", 3<<20) + "\necho big", 0, "big\n"},
			{nil, `printf 'a\0\377\r\n'`, 0, "a\x00\xff\r\n"},
			{[]string{"true"}, strings.Repeat("never read\n", 1<<16), 0, ""},
			{nil, "", 0, ""},
		} {
			var stdout, stderr sshtest.Log
			code, err := connector.RunScript(sshtest.Within(t), conn, connector.Script{
				Shell: test.shell, Text: []byte(test.text), Stdout: &stdout, Stderr: &stderr,
			})
			require.NoError(t, err)
			require.Equal(t, test.code, code, "%s", stderr.String())
			require.Equal(t, test.out, stdout.String()+stderr.String())
		}
	})
}

// pidsIn reads what a script wrote to a file.
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
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, sshtest.Bound, 5*time.Millisecond, "process %d", pid)
	}
}

func TestScriptThatIsCancelledOrCutOffLeavesNoProcess(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for name, end := range map[string]func(context.CancelFunc, *sshtest.TCPProxy){
			"cancelled": func(cancel context.CancelFunc, _ *sshtest.TCPProxy) { cancel() },
			"cut off":   func(_ context.CancelFunc, proxy *sshtest.TCPProxy) { proxy.Cut() },
		} {
			t.Run(name, func(t *testing.T) {
				proxy := sshtest.Proxy(t, s.Addr)
				conn := connect(t, s.Via(t, proxy.Addr()))
				file := filepath.Join(t.TempDir(), "pids")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out sshtest.Log
				failed := make(chan error, 1)
				go func() {
					_, err := connector.RunScript(ctx, conn, connector.Script{
						Text: []byte(`trap "echo cleaning up" TERM
echo $$ >` + file + `; sleep 600 & echo $! >>` + file + `
sh -c 'trap "" TERM; while :; do sleep 600; done' & echo $! >>` + file + `
echo started; wait; wait`),
						Grace: time.Second, Stdout: &out, Stderr: &out,
					})
					failed <- err
				}()
				require.Eventually(t, func() bool { return strings.Contains(out.String(), "started") }, sshtest.Bound, time.Millisecond)
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

func TestScriptsBackgroundProcessesEndWithIt(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		file := filepath.Join(t.TempDir(), "pids")
		code, err := connector.RunScript(sshtest.Within(t), connect(t, s), connector.Script{
			Text: []byte("sleep 600 & echo $! >" + file),
		})
		require.NoError(t, err)
		require.Zero(t, code)
		requireGone(t, pidsIn(t, file))
	})
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestScriptWhoseLogFailsIsStopped(t *testing.T) {
	s := sshtest.InProcess(t, vmtest.Config{})
	_, err := connector.RunScript(sshtest.Within(t), connect(t, s), connector.Script{
		Text: []byte("while :; do echo x; sleep 0.01; done"), Stdout: brokenWriter{}, Grace: time.Second,
	})
	failed := (*connector.LogError)(nil)
	require.ErrorAs(t, err, &failed)
}

func TestScriptLeavesNoFile(t *testing.T) {
	tmp := t.TempDir()
	s := sshtest.InProcess(t, vmtest.Config{Env: []string{"TMPDIR=" + tmp}})
	conn := connect(t, s)
	for range 5 {
		_, err := connector.RunScript(sshtest.Within(t), conn, connector.Script{Text: []byte("exit 3")})
		require.NoError(t, err)
	}
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestScriptEndsWithItsContextThoughTheVMReadsNothing(t *testing.T) {
	// Symptom: a login shell that hung, and a script larger than the window, held RunScript for ever.
	shell := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700))
	s := sshtest.InProcess(t, vmtest.Config{Shell: shell})
	conn := connect(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := connector.RunScript(ctx, conn, connector.Script{Text: make([]byte, 8<<20), Grace: time.Second})
		failed <- err
	}()
	require.Eventually(t, func() bool { return conn.Stat().Sessions.Open == 1 }, sshtest.Bound, time.Millisecond)
	cancel()
	require.Equal(t, context.Canceled, <-failed)
}

func TestScriptWhoseStderrLogFailsIsStopped(t *testing.T) {
	s := sshtest.InProcess(t, vmtest.Config{})
	_, err := connector.RunScript(sshtest.Within(t), connect(t, s), connector.Script{
		Text: []byte("echo x >&2; sleep 600"), Stderr: brokenWriter{}, Grace: time.Second,
	})
	failed := (*connector.LogError)(nil)
	require.ErrorAs(t, err, &failed)
}
