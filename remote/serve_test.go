package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// served is a running `steps serve`.
type served struct {
	cmd    *exec.Cmd
	stdin  *os.File // the leash, nil if it has none
	stdout bytes.Buffer
	stderr *remotetest.Output
	exited chan struct{} // closed once cmd.ProcessState is set
}

// startServe runs serve as a process of its own with a leash, and waits for its marker.
func startServe(t *testing.T, socket string) *served {
	t.Helper()
	s := launchServe(t, socket, nil)
	s.waitReady(t)
	return s
}

// launchServe does not wait. change may change the command before it starts.
func launchServe(t *testing.T, socket string, change func(*served)) *served {
	t.Helper()
	s := &served{
		stderr: remotetest.NewOutput(),
		exited: make(chan struct{}),
		cmd:    remotetest.Role(context.Background(), "serve", socket),
	}
	near, far, err := os.Pipe()
	require.NoError(t, err)
	s.stdin = far
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = near, &s.stdout, s.stderr
	if change != nil {
		change(s)
	}
	require.NoError(t, s.cmd.Start())
	near.Close()
	go func() {
		s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.exited
		far.Close()
	})
	return s
}

func (s *served) waitReady(t *testing.T) {
	t.Helper()
	select {
	case <-s.stderr.Ready:
	case <-s.exited:
		select { // its last words may have been the marker
		case <-s.stderr.Ready:
		default:
			t.Fatalf("serve ended before it was ready: %v: %s", s.cmd.ProcessState, s.stderr)
		}
	}
}

// requireExit waits for the end of serve and requires the exit code and that the directory is gone.
func (s *served) requireExit(t *testing.T, code int, socket string) {
	t.Helper()
	<-s.exited
	require.Equal(t, code, s.cmd.ProcessState.ExitCode(), "%v: %s", s.cmd.ProcessState, s.stderr)
	remotetest.RequireGone(t, filepath.Dir(socket))
	require.Empty(t, s.stdout.String())
}

func TestServePrintsTheMarkerFirstAndListens(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "42")
	s := startServe(t, socket)
	require.True(t, strings.HasPrefix(s.stderr.String(), wire.ReadyLine(socket)))
	fi, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, fi.Mode())
	conn, err := socketdir.Connect(t.Context(), socket)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
	require.Equal(t, greeting(socket), s.stderr.String())
	require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
}

func TestServeEndsBySignal(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
			s := startServe(t, socket)
			require.NoError(t, s.cmd.Process.Signal(sig))
			s.requireExit(t, 0, socket)
		})
	}
}

func TestServeOutlivesTheParentOfADaemon(t *testing.T) {
	// As GitLab Runner's manager starts it: in the background of a shell that goes away.
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	out, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer out.Close()
	line, err := wire.Quote(os.Args[0], socket)
	require.NoError(t, err)
	sh := exec.CommandContext(t.Context(), "sh", "-c", line+" </dev/null >/dev/null & echo $!")
	sh.Env = append(os.Environ(), remotetest.RoleVar+"=serve")
	sh.Stderr = out
	pid, err := sh.Output()
	require.NoError(t, err)
	var n int
	_, err = fmt.Sscan(string(pid), &n)
	require.NoError(t, err)
	daemon, err := unix.PidfdOpen(n, unix.PIDFD_NONBLOCK)
	require.NoError(t, err)
	f := os.NewFile(uintptr(daemon), "pidfd")
	defer f.Close()
	waitServing(t, socket)
	require.NoError(t, unix.PidfdSendSignal(daemon, unix.SIGTERM, nil, 0))
	waitPidfd(t, f)
	remotetest.RequireGone(t, filepath.Dir(socket))
}

// waitPidfd waits until the process has ended.
func waitPidfd(t *testing.T, f *os.File) {
	t.Helper()
	rc, err := f.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}))
}

func TestServeLivesAndCleansUpAfterStderrIsClosed(t *testing.T) {
	// A process that writes to a closed stderr is killed by SIGPIPE, here with its first word.
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	s := launchServe(t, socket, func(s *served) { s.cmd.Stderr = writer })
	require.NoError(t, writer.Close())
	waitServing(t, socket)
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
}

// waitServing waits until a process listens on socket, for tests that do not see the marker.
func waitServing(t *testing.T, socket string) {
	t.Helper()
	require.Eventually(t, func() bool {
		conn, err := socketdir.Connect(t.Context(), socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, time.Minute, time.Millisecond)
}

//stepmux:faults service | The socket of a server that was killed keeps the next one from starting
//stepmux:with remote/socketdir.TestSockDirOfADeadServeIsReplaced
func TestServeSweepsAfterAKilledOne(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	killed := startServe(t, remotetest.SocketIn(t, tmp, "killed"))
	same := startServe(t, remotetest.SocketIn(t, tmp, "same"))
	for _, s := range []*served{killed, same} {
		require.NoError(t, s.cmd.Process.Kill())
		<-s.exited
	}
	next := startServe(t, remotetest.SocketIn(t, tmp, "same")) // takes the place of a dead one
	base := filepath.Join(tmp, wire.SocketBase)
	require.Eventually(
		t,
		func() bool { return fmt.Sprint(remotetest.Names(t, base)) == "[same]" },
		time.Minute,
		time.Millisecond,
	)
	require.NoError(t, next.stdin.Close())
	next.requireExit(t, 0, remotetest.SocketIn(t, tmp, "same"))
	require.Empty(t, remotetest.Names(t, base))
}

func TestServeRefusesABuildThatIsBeingServed(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	first := startServe(t, socket)
	second := launchServe(t, socket, nil)
	<-second.exited
	require.Equal(t, 1, second.cmd.ProcessState.ExitCode())
	require.Contains(t, second.stderr.String(), "build 42")
	require.Contains(t, second.stderr.String(), "already being served")
	require.NotContains(t, second.stderr.String(), "listening")
	conn, err := socketdir.Connect(t.Context(), socket) // the first is unharmed
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, first.stdin.Close())
	first.requireExit(t, 0, socket)
}

func TestServeNamesItsErrorBeforeItIsReady(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	for path, want := range map[string]string{
		filepath.Join(tmp, wire.SocketBase, strings.Repeat("x", 300), "s"): "a unix socket allows 107",
		filepath.Join(tmp, wire.SocketBase, "a b", "s"):                    "invalid build ID",
		wire.SocketBase + "/1/s":                                           "is not absolute",
		"/nowhere/gitlab-runner-steps/42/step-runner.sock":                 "/nowhere (it must exist)",
	} {
		s := launchServe(t, path, nil)
		<-s.exited
		require.Equal(t, 1, s.cmd.ProcessState.ExitCode(), path)
		require.Contains(t, s.stderr.String(), "serve: ")
		require.Contains(t, s.stderr.String(), want)
		require.NotContains(t, s.stderr.String(), "listening")
		require.Empty(t, remotetest.Names(t, tmp))
	}
}

func TestServeSaysThatTheDiskIsFull(t *testing.T) {
	tmp := remotetest.TinyFS(t)
	held, err := socketdir.Open(t.Context(), remotetest.SocketIn(t, tmp, "held"))
	require.NoError(t, err)
	remotetest.FillDisk(t, held.Path())
	s := launchServe(t, remotetest.SocketIn(t, tmp, "42"), nil)
	<-s.exited
	require.Equal(t, 1, s.cmd.ProcessState.ExitCode())
	require.Contains(
		t,
		s.stderr.String(),
		"no space left on device (free space or inodes on the file system of "+filepath.Dir(held.Path()),
	)
	require.Equal(t, []string{"held"}, remotetest.Names(t, filepath.Dir(held.Path())))
	require.NoError(t, held.Remove(t.Context()))
}

func TestFiftyServesStartAtOnce(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	var all []*served
	for i := range 50 {
		all = append(all, launchServe(t, remotetest.SocketIn(t, tmp, fmt.Sprintf("build-%d", i)), nil))
	}
	for _, s := range all {
		s.waitReady(t)
		require.True(t, strings.HasPrefix(s.stderr.String(), wire.ReadyLine(s.cmd.Args[1])))
	}
	for _, s := range all {
		conn, err := socketdir.Connect(t.Context(), s.stderr.Socket())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	for _, s := range all {
		require.NoError(t, s.stdin.Close())
	}
	for _, s := range all {
		s.requireExit(t, 0, s.cmd.Args[1])
	}
	require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
}

func TestServeIsNotHeldUpByConnectionsThatSayNothing(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := startServe(t, socket)
	conn, err := socketdir.Connect(t.Context(), socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 9)) // its settings: now it waits for ours
	require.NoError(t, err)
	require.NoError(t, s.stdin.Close())
	start := time.Now()
	s.requireExit(t, 0, socket)
	require.Less(t, time.Since(start), time.Minute, "gRPC by itself waits two minutes")
	_, err = io.Copy(io.Discard, conn)
	require.True(t, err == nil || errors.Is(err, unix.ECONNRESET), "%v", err)
}

func TestServePassesItsGraceToTheJobs(t *testing.T) {
	for name, tc := range map[string]struct{ set, want time.Duration }{
		"default": {0, defaultGrace}, "given": {time.Minute, time.Minute}, "none": {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
			ctx, cancel := context.WithCancel(t.Context())
			because := errors.New("a job would not die")
			runner := bareRunner(func(ctx context.Context, grace time.Duration) error {
				require.Equal(t, tc.want, grace)
				require.NoError(t, ctx.Err(), "it would not wait")
				require.DirExists(t, filepath.Dir(socket), "removed under the feet of the jobs")
				return because
			})
			open := func(_ *proc.Init, dir string, _ ...grpc.ServerOption) (*jobRunner, error) {
				require.Equal(t, filepath.Dir(socket), dir)
				return runner, nil
			}
			out := remotetest.NewOutput()
			done := make(chan error, 1)
			go func() { done <- serve(ctx, Stdio{Err: out}, ServeConfig{Socket: socket, Grace: tc.set}, open) }()
			<-out.Ready
			cancel()
			err := <-done
			require.ErrorIs(t, err, because)
			require.ErrorContains(t, err, "serve: stop jobs")
			remotetest.RequireGone(t, filepath.Dir(socket))
		})
	}
}

func TestServeCleansUpWhenItCannotListen(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	stopped := false
	open := func(_ *proc.Init, dir string, _ ...grpc.ServerOption) (*jobRunner, error) {
		require.NoError(t, os.WriteFile(socket, nil, 0o600))
		return bareRunner(func(context.Context, time.Duration) error { stopped = true; return nil }), nil
	}
	out := remotetest.NewOutput()
	err := serve(t.Context(), Stdio{Err: out}, ServeConfig{Socket: socket}, open)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.ErrorContains(t, err, "listen on "+socket)
	require.True(t, stopped)
	require.Empty(t, out.String())
	remotetest.RequireGone(t, filepath.Dir(socket))
}

func TestServeEndsWithAnErrorWhenTheServerFails(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	runner := bareRunner(func(context.Context, time.Duration) error { return nil })
	runner.server.Stop() // Serve on it fails
	out := remotetest.NewOutput()
	err := serve(
		t.Context(),
		Stdio{Err: out},
		ServeConfig{Socket: socket},
		func(*proc.Init, string, ...grpc.ServerOption) (*jobRunner, error) { return runner, nil },
	)
	require.ErrorContains(t, err, "serve: accept on "+socket)
	remotetest.RequireGone(t, filepath.Dir(socket))
}

func TestServeReportsAJobStoreThatDoesNotOpen(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	err := serve(t.Context(), Stdio{Err: io.Discard}, ServeConfig{Socket: socket},
		func(*proc.Init, string, ...grpc.ServerOption) (*jobRunner, error) {
			return nil, fmt.Errorf("make store: %w", unix.ENOSPC)
		})
	require.ErrorContains(t, err, "serve: make store: no space left on device (free space or inodes")
	remotetest.RequireGone(t, filepath.Dir(socket))
}

func TestServeMovesToTheUsersBaseAndSaysSo(t *testing.T) {
	remotetest.NeedRoot(t)
	tmp := remotetest.ShortTemp(t)
	require.NoError(t, os.Mkdir(filepath.Join(tmp, wire.SocketBase), 0o700))
	require.NoError(t, os.Lchown(filepath.Join(tmp, wire.SocketBase), remotetest.Nobody, remotetest.Nobody))
	s := startServe(t, remotetest.SocketIn(t, tmp, "42"))
	moved := filepath.Join(tmp, wire.SocketBase+"-0", "42", wire.SocketName)
	require.True(t, strings.HasPrefix(s.stderr.String(), wire.ReadyLine(moved)))
	conn, err := socketdir.Connect(t.Context(), moved)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, moved)
}

func TestServeOfTwoUsersShareATemporaryDirectory(t *testing.T) {
	remotetest.NeedRoot(t)
	tmp := remotetest.ShortTemp(t)
	require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))
	first := startServe(t, remotetest.SocketIn(t, tmp, "42"))
	theirs := remotetest.AsNobody(t, remotetest.Role(t.Context(), "serve", remotetest.SocketIn(t, tmp, "42")))
	second := launchServe(t, "", func(s *served) {
		theirs.Stdin, theirs.Stdout, theirs.Stderr = s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr
		s.cmd = theirs
	})
	second.waitReady(t)
	moved := filepath.Join(tmp, fmt.Sprintf("%s-%d", wire.SocketBase, remotetest.Nobody), "42", wire.SocketName)
	require.True(t, strings.HasPrefix(second.stderr.String(), wire.ReadyLine(moved)))
	_, err := socketdir.Connect(t.Context(), moved)
	require.ErrorContains(t, err, "of user 65534", "root must not talk to another user's serve by accident")
	for _, s := range []*served{first, second} {
		require.NoError(t, s.stdin.Close())
	}
	first.requireExit(t, 0, remotetest.SocketIn(t, tmp, "42"))
	second.requireExit(t, 0, moved)
}

func TestProxyEndsWithAKilledServe(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := startServe(t, socket)
	cmd := remotetest.Role(t.Context(), "proxy", socket)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = io.WriteString(stdin, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	require.NoError(t, err)
	_, err = stdout.Read(make([]byte, 9)) // the server's settings: the bridge stands
	require.NoError(t, err)
	require.NoError(t, s.cmd.Process.Kill())
	_, err = io.Copy(io.Discard, stdout)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}

// bareRunner serves gRPC without any service.
func bareRunner(stop func(context.Context, time.Duration) error) *jobRunner {
	return &jobRunner{server: grpc.NewServer(), warm: func() {}, stop: stop, close: func() error { return nil }}
}
