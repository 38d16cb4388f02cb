package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// proxied is a running `steps proxy` and the server's end of its connection.
type proxied struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr *remotetest.Output
	server *net.UnixConn
}

// startProxy runs a proxy as a process of its own, connected.
func startProxy(t *testing.T) *proxied {
	t.Helper()
	ln, path := listen(t)
	p := launchProxy(t, path)
	p.server = accept(t, ln)
	return p
}

// launchProxy does not wait for the connection.
func launchProxy(t *testing.T, path string) *proxied {
	t.Helper()
	p := &proxied{stderr: remotetest.NewOutput(), cmd: remotetest.Role(t.Context(), "proxy", path)}
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	p.stdout, err = p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p.stderr
	require.NoError(t, p.cmd.Start())
	return p
}

func listen(t *testing.T) (ln net.Listener, path string) {
	t.Helper()
	path = filepath.Join(remotetest.ShortTemp(t), "s")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln, path
}

func accept(t *testing.T, ln net.Listener) *net.UnixConn {
	t.Helper()
	conn, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

// proxyHere runs a Proxy in this process, connected. It returns the server's end and gets the Proxy's error.
func proxyHere(ctx context.Context, t *testing.T, stdio Stdio) (server *net.UnixConn, done <-chan error) {
	t.Helper()
	ln, path := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- Proxy(ctx, stdio, ProxyConfig{Socket: path}) }()
	return accept(t, ln), ended
}

// requireClean waits for the proxy and requires that it was content.
func (p *proxied) requireClean(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Wait(), "%s", p.stderr)
	require.Empty(t, p.stderr.String())
}

func TestProxyDeliversTheReplyAfterTheEndOfStdin(t *testing.T) {
	p := startProxy(t)
	_, err := io.WriteString(p.stdin, "request")
	require.NoError(t, err)
	require.NoError(t, p.stdin.Close())
	request, err := io.ReadAll(p.server)
	require.NoError(t, err)
	require.Equal(t, "request", string(request))

	reply := []byte(remotetest.Repeat(8 << 20))
	sent := make(chan error, 1)
	go func() {
		_, err := p.server.Write(reply)
		sent <- errors.Join(err, p.server.Close())
	}()
	got, err := io.ReadAll(p.stdout)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(reply, got), "%d bytes of %d", len(got), len(reply))
	p.requireClean(t)
}

func TestProxyTakesItsSocketFromStdin(t *testing.T) {
	ln, path := listen(t)
	p := launchProxy(t, SocketOnStdin)
	body := remotetest.Repeat(1 << 20)
	sent := make(chan error, 1)
	go func() { // the first bytes of what is carried come with the path, and some have newlines
		_, err := io.WriteString(p.stdin, path+"\nfirst\n"+body)
		sent <- errors.Join(err, p.stdin.Close())
	}()
	conn := accept(t, ln)
	received, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, "first\n"+body == string(received))
	_, err = io.WriteString(conn, "reply")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	reply, err := io.ReadAll(p.stdout)
	require.NoError(t, err)
	require.Equal(t, "reply", string(reply))
	p.requireClean(t)
}

func TestProxyThatIsToldNoSocketEnds(t *testing.T) {
	for name, c := range map[string]struct{ stdin, says string }{
		"nothing":      {"", ""},
		"half a line":  {"/tmp/so", "unexpected EOF"},
		"a long line":  {strings.Repeat("x", 4096), "that is not the path of a socket"},
		"no such path": {"/nonexistent/s\n", "there is no such socket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := remotetest.Role(t.Context(), "proxy", SocketOnStdin)
			cmd.Stdin = strings.NewReader(c.stdin)
			stderr := remotetest.NewOutput()
			cmd.Stderr = stderr
			err := cmd.Run()
			if c.says == "" {
				require.NoError(t, err)
				require.Empty(t, stderr.String())
				return
			}
			require.Error(t, err)
			require.Contains(t, stderr.String(), c.says)
		})
	}
}

func TestProxyGoesOnSendingAfterTheServersHalfClose(t *testing.T) {
	p := startProxy(t)
	_, err := io.WriteString(p.server, "hello")
	require.NoError(t, err)
	require.NoError(t, p.server.CloseWrite())
	got, err := io.ReadAll(p.stdout)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))

	// Stdout has ended; the other direction has not.
	body := remotetest.Repeat(1 << 20)
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(p.stdin, body)
		sent <- errors.Join(err, p.stdin.Close())
	}()
	received, err := io.ReadAll(p.server)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, body == string(received))
	p.requireClean(t)
}

//stepmux:faults service | The proxy outlives its server, or loses the reply when its input ends first
//stepmux:with remote.TestProxyEndsWithAKilledServe, remote.TestProxyDeliversTheReplyAfterTheEndOfStdin
func TestProxyEndsWithTheServerWhileStdinIsOpen(t *testing.T) {
	for name, die := range map[string]func(*proxied){
		"which closes":                    func(p *proxied) { p.server.Close() },
		"which closes after a half-close": func(p *proxied) { p.server.CloseWrite(); p.server.Close() },
		"which closes with bytes unread": func(p *proxied) {
			io.WriteString(p.stdin, "unread")
			waitReadable(p.server)
			p.server.Close()
		},
		"which half-closes, then hangs up": func(p *proxied) {
			p.server.CloseWrite()
			io.ReadAll(p.stdout)
			p.server.Close()
		},
		"which takes no more, then hangs up": func(p *proxied) {
			p.server.CloseRead()
			io.WriteString(p.stdin, "lost")
			p.server.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t)
			die(p)
			io.ReadAll(p.stdout)
			p.requireClean(t) // Wait closes stdin only once the proxy has ended
		})
	}
}

// waitReadable waits until conn has something to read, and leaves it there.
func waitReadable(conn *net.UnixConn) {
	rc, err := conn.SyscallConn()
	if err != nil {
		panic(err)
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	})
}

func TestProxyCarriesBothDirectionsAtOnceUnchanged(t *testing.T) {
	const size = 64 << 20
	p := startProxy(t)
	stream := func(seed byte) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size) }
	sum := func(r io.Reader) (string, error) {
		h := sha256.New()
		n, err := io.Copy(h, r)
		return fmt.Sprintf("%d %x", n, h.Sum(nil)), err
	}
	errs := make(chan error, 2)
	go func() {
		_, err := io.Copy(p.stdin, stream(1))
		errs <- errors.Join(err, p.stdin.Close())
	}()
	go func() {
		_, err := io.Copy(p.server, stream(2))
		errs <- errors.Join(err, p.server.CloseWrite())
	}()
	type result struct {
		sum string
		err error
	}
	up := make(chan result, 1)
	go func() {
		s, err := sum(p.server)
		up <- result{s, err}
	}()
	down, err := sum(p.stdout)
	require.NoError(t, err)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	got := <-up
	require.NoError(t, got.err)
	want, _ := sum(stream(1))
	require.Equal(t, want, got.sum)
	want, _ = sum(stream(2))
	require.Equal(t, want, down)
	p.requireClean(t)
}

// cpuTime is the CPU time process pid has used, user and system, in ticks of 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3
	user, err := strconv.Atoi(fields[14-3])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[15-3])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// flood writes to w until it has stalled: until a whole second went by in which it took nothing.
func flood(t *testing.T, w net.Conn) {
	t.Helper()
	chunk := []byte(remotetest.Repeat(64 << 10))
	for {
		require.NoError(t, w.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := w.Write(chunk)
		if errors.Is(err, os.ErrDeadlineExceeded) && n == 0 {
			return
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			require.NoError(t, err)
		}
	}
}

func TestProxyCostsNothingWhileStdoutIsStalled(t *testing.T) {
	p := startProxy(t)
	flood(t, p.server)
	const stall = 2 * time.Second
	before := cpuTime(t, p.cmd.Process.Pid)
	timer := time.NewTimer(stall)
	<-timer.C
	// A proxy that splices into a stdout in blocking mode uses all of a core here.
	used := cpuTime(t, p.cmd.Process.Pid) - before
	require.Less(t, used, stall/4)
	require.NoError(t, p.server.Close())
	io.Copy(io.Discard, p.stdout)
	p.requireClean(t)
}

func TestProxyEndsBySignalWhileStdoutIsStalled(t *testing.T) {
	p := startProxy(t)
	flood(t, p.server)
	require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
	p.cmd.Wait()
	require.Equal(t, 1, p.cmd.ProcessState.ExitCode(), "%s", p.stderr)
	_, err := io.Copy(io.Discard, p.server)
	require.True(t, err == nil || errors.Is(err, unix.ECONNRESET), "%v", err)
}

func TestProxyEndsWhenStdoutHasNoReader(t *testing.T) {
	p := startProxy(t)
	require.NoError(t, p.stdout.Close())
	for { // until it notices
		if _, err := p.server.Write([]byte("x")); err != nil {
			break
		}
	}
	p.cmd.Wait()
	require.Equal(t, 1, p.cmd.ProcessState.ExitCode())
	require.Contains(t, p.stderr.String(), "proxy: stdout: broken pipe")
}

func TestProxySaysWhyItCannotConnect(t *testing.T) {
	dir := remotetest.ShortTemp(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	ln, err := net.Listen("unix", in("dead"))
	require.NoError(t, err)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.NoError(t, os.Symlink(in("dead"), in("link")))
	for path, want := range map[string]string{
		in("none"):                     "there is no such socket: the build has ended, or its serve has not started",
		in("file"):                     "it is a regular file, not a socket",
		in("link"):                     "it is a symbolic link, not a socket",
		dir:                            "it is a directory, not a socket",
		in("dead"):                     "no process listens there: its serve has died",
		"s":                            "is not absolute",
		"":                             "is not absolute",
		"/" + strings.Repeat("x", 107): "a unix socket allows 107",
	} {
		cmd := remotetest.Role(t.Context(), "proxy", path)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, path)
		require.Equal(t, 1, exit.ExitCode(), path)
		require.Contains(t, stderr.String(), want)
		require.Contains(t, stderr.String(), path)
		require.Empty(t, stdout.String(), path)
	}
}

//stepmux:reliability mechanisms | No other user reaches a step runner | `remote/socketdir/peer.go`
func TestProxyRefusesASocketOfAnotherUser(t *testing.T) {
	remotetest.NeedRoot(t)
	dir := remotetest.ShortTemp(t)
	path := filepath.Join(dir, "s")
	require.NoError(t, os.Chmod(dir, 0o777))
	listener := remotetest.AsNobody(t, remotetest.Role(t.Context(), "listen", path))
	stdin, err := listener.StdinPipe()
	require.NoError(t, err)
	stdout, err := listener.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, listener.Start())
	_, err = io.ReadFull(stdout, make([]byte, 2))
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o777))

	bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	another := remotetest.AsNobody(t, remotetest.Role(bounded, "proxy", path))
	another.SysProcAttr.Credential.Uid--
	said, err := another.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "of user 65534, which is neither us (user 65533) nor root")
	root := remotetest.Role(t.Context(), "proxy", path) // it becomes the user who listens
	input, err := root.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, root.Start())
	remotetest.Eventually(t, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", root.Process.Pid))
		return err == nil && strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534\n")
	}, "root's proxy is not the user who listens")
	require.NoError(t, stdin.Close())
	require.NoError(t, listener.Wait())
	require.NoError(t, input.Close())
	_ = root.Wait() // the listener may have gone first
}

func TestProxyEndsWithItsContextAndRestoresItsFiles(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			in, _ := remotetest.BlockingPair(t, kind)
			reader, out := remotetest.BlockingPair(t, kind)
			ctx, cancel := context.WithCancelCause(t.Context())
			conn, done := proxyHere(ctx, t, Stdio{In: in, Out: out})
			_, err := conn.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(reader, make([]byte, 5)) // it runs
			require.NoError(t, err)
			because := errors.New("SIGTERM")
			cancel(because)
			require.ErrorIs(t, <-done, because)
			_, err = conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.False(t, remotetest.Nonblocking(t, in))
			require.False(t, remotetest.Nonblocking(t, out))
		})
	}
}

func TestProxyEndsASharedSocketOnlyInItsDirection(t *testing.T) {
	// sshd may give a command one socket as its stdin and stdout.
	near, far := remotetest.BlockingPair(t, "socket")
	fd, err := unix.FcntlInt(near.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	out := os.NewFile(uintptr(fd), "out")
	conn, done := proxyHere(t.Context(), t, Stdio{In: near, Out: out})
	require.NoError(t, conn.CloseWrite())
	n, err := far.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
	_, err = far.WriteString("still here")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, len("still here")))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, <-done)
}

func TestProxyDoesNotPassOffABrokenStdinAsItsEnd(t *testing.T) {
	near, far := remotetest.BlockingPair(t, "socket")
	_, out := remotetest.BlockingPair(t, "pipe")
	_, err := near.WriteString("unread") // closing far now breaks the connection
	require.NoError(t, err)
	_, done := proxyHere(t.Context(), t, Stdio{In: near, Out: out})
	require.NoError(t, far.Close())
	err = <-done // though the server has not ended
	require.ErrorIs(t, err, unix.ECONNRESET)
	require.ErrorContains(t, err, "proxy: stdin: read")
}

func TestProxyNeedsStdinAndStdout(t *testing.T) {
	_, path := listen(t)
	require.ErrorContains(t, Proxy(t.Context(), Stdio{}, ProxyConfig{Socket: path}), "stdin or stdout is missing")
}
