package service

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// These tests run the program itself, as GitLab Runner's manager does.

// socketPath returns where a serve can be told to listen.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sm") //nolint:usetesting // that of t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { // what a killed serve has left may be going on with the removal
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, time.Minute, 5*time.Millisecond)
	})
	return filepath.Join(dir, "gitlab-runner-steps", "1", "step-runner.sock")
}

// managerOf returns the manager's client of the server to which dial connects.
func managerOf(t *testing.T, dial func(context.Context) (net.Conn, error)) runnerproto.StepRunnerClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:serve",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return runnerproto.NewStepRunnerClient(conn)
}

func dialUnix(socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
}

// started is a command that is killed at the end of the test.
type started struct {
	*exec.Cmd
	stderr *bufio.Reader
	exited chan struct{} // closed once ProcessState is set
}

// start starts a command with stdin; its stderr must be read for it to end.
func start(t *testing.T, stdin *os.File, args ...string) *started {
	t.Helper()
	s := &started{Cmd: exec.CommandContext(context.Background(), args[0], args[1:]...), exited: make(chan struct{})}
	s.Stdin = stdin
	r, w, err := os.Pipe()
	require.NoError(t, err)
	s.stderr, s.Stderr = bufio.NewReader(r), w
	require.NoError(t, s.Start())
	w.Close()
	go func() {
		_ = s.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		_ = s.Process.Kill()
		<-s.exited
		r.Close()
	})
	return s
}

// dialProxy starts a proxy on a socket pair and returns the other end.
func dialProxy(t *testing.T, program, socket string) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
		defer near.Close()
		defer far.Close()
		conn, err := net.FileConn(near)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(t.Context(), program, "steps", "proxy", "--socket", socket)
		cmd.Stdin, cmd.Stdout = far, far
		if err := cmd.Start(); err != nil {
			conn.Close()
			return nil, err
		}
		t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
		return conn, nil
	}
}

//stepmux:faults manager | `steps serve --socket`, `steps proxy --socket`, and `--version` in its form
func TestManagerFindsTheCommandsAndTheVersionItExpects(t *testing.T) {
	program, err := runnertest.Program()
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^Version: +\S+$`, string(out))
	require.Contains(t, string(out), "OS/Arch: "+runtime.GOOS+"/"+runtime.GOARCH+"\n")

	socket := socketPath(t)
	serve := start(t, nil, program, "steps", "serve", "--socket", socket)
	_, err = serve.stderr.ReadString('\n')
	require.NoError(t, err)
	h := &harness{t: t, manager: managerOf(t, dialProxy(t, program, socket))}
	h.runManaged(
		&runnerproto.RunRequest{Id: "1", Steps: "{}\n---\nrun: [{name: a, script: head -c 1000000 /dev/zero; exit 7}]"},
	)
	require.Equal(t, "Running step \"a\"\n"+strings.Repeat("\x00", 1_000_000), h.logs(h.manager, "1", 0, ""))
	require.Equal(t, `step "a": exec: exit status 7`, h.status("1").GetMessage())
}

//stepmux:faults manager | The ready marker, to the byte, as the first line on stderr, and only when it can connect
func TestManagerSeesTheMarkerAsTheFirstLineOnStderrAndCanConnectThen(t *testing.T) {
	program, err := runnertest.Program()
	require.NoError(t, err)
	socket := socketPath(t)
	// The client is there before the server, and waits.
	h := &harness{t: t, manager: managerOf(t, dialUnix(socket))}
	accepted := make(chan error, 1)
	go func() {
		_, err := h.manager.Run(
			t.Context(),
			&runnerproto.RunRequest{Id: "1", Steps: "{}\n---\nrun: [{name: a, script: echo hi}]"},
		)
		accepted <- err
	}()
	serve := start(t, nil, program, "steps", "serve", "--socket", socket)
	line, err := serve.stderr.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "step-runner is listening on socket "+socket+"\n", line)
	conn, err := dialUnix(socket)(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, <-accepted)
	require.Equal(t, "Running step \"a\"\nhi\n", h.logs(h.manager, "1", 0, ""))
	require.NoError(t, serve.Process.Signal(unix.SIGTERM))
	rest, err := io.ReadAll(serve.stderr)
	require.NoError(t, err)
	require.Regexp(t, `^step-runner: no secret guards this socket: [^\n]*\n$`, string(rest))
}

//stepmux:faults manager | A serve in the background of a shell lives without a leash; SIGTERM ends it and its jobs
//stepmux:with remote.TestServeOutlivesTheParentOfADaemon
func TestManagersServeIsInTheBackgroundOfAShellAndEndsItsJobsWithSIGTERM(t *testing.T) {
	program, err := runnertest.Program()
	require.NoError(t, err)
	socket := socketPath(t)
	vitals := filepath.Join(t.TempDir(), "vitals") // held open by all processes of the job
	require.NoError(t, unix.Mkfifo(vitals, 0o600))

	// The shell's stdin is a pipe that ends, serve's is /dev/null: that is no leash.
	stdin, far, err := os.Pipe()
	require.NoError(t, err)
	sh := start(
		t,
		stdin,
		"sh",
		"-c",
		`"$0" steps serve --socket "$1" </dev/null & echo "pid $!" >&2; wait; exit 9`,
		program,
		socket,
	)
	stdin.Close()
	require.NoError(t, far.Close())
	var pid int
	for ready := false; pid == 0 || !ready; {
		line, err := sh.stderr.ReadString('\n')
		require.NoError(t, err)
		switch _, err := fmt.Sscanf(line, "pid %d\n", &pid); {
		case err == nil: // the shell writes it beside serve
		case !ready:
			require.Equal(t, "step-runner is listening on socket "+socket+"\n", line)
			ready = true
		default:
			require.Contains(t, line, "step-runner: no secret guards this socket: ")
		}
	}
	t.Cleanup(func() {
		if t.Failed() { // it has no leash
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})

	h := &harness{t: t, manager: managerOf(t, dialUnix(socket))}
	h.runManaged(&runnerproto.RunRequest{Id: "1", Steps: "{}\n---\nrun:\n- name: a\n  script: |\n" +
		"    exec 9>" + vitals + "\n    sleep 4743 &\n    setsid sleep 4743 &\n    echo up >&9\n    sleep 4743\n"})
	alive, err := os.Open(vitals) // waits for the script to open it too
	require.NoError(t, err)
	defer alive.Close()
	up := make([]byte, 3)
	_, err = io.ReadFull(alive, up)
	require.NoError(t, err)

	require.NoError(t, unix.Kill(pid, unix.SIGTERM))
	rest, err := io.ReadAll(alive)
	require.NoError(t, err)
	require.Empty(t, rest, "no process of the job is left")
	_, _ = io.Copy(io.Discard, sh.stderr)
	// The shell waits without a limit; it has got its turn.
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-sh.exited:
		require.Equal(t, 9, sh.ProcessState.ExitCode())
	case <-timer.C:
		t.Fatal("the shell waits on")
	}
	require.NoDirExists(t, filepath.Dir(socket))
}
