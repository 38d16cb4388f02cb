package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// relayed is a running `steps relay` and its manager.
type relayed struct {
	*manager
	tmp    string
	cmd    *exec.Cmd
	stdin  *os.File // the leash
	stderr *remotetest.Output
	exited chan struct{} // closed once cmd.ProcessState is set

	linger bool // the serves of serve linger
}

// manager is a manager's end of a relay.
type manager struct{ session *yamux.Session }

// startRelay runs a relay as a process of its own, with a grace that no test waits for in vain.
func startRelay(t testing.TB) *relayed {
	t.Helper()
	r := launchRelay(t, time.Minute)
	r.manager = manage(t, r.stdin, r.stdout(t))
	return r
}

// startSweptRelay returns a relay that has looked at the base, which it makes private.
func startSweptRelay(t testing.TB) *relayed {
	t.Helper()
	r := launchRelay(t, time.Minute)
	dead := filepath.Join(r.tmp, wire.SocketBase, "dead")
	require.NoError(t, os.MkdirAll(dead, 0o700))
	r.manager = manage(t, r.stdin, r.stdout(t))
	remotetest.Eventually(t, func() bool {
		_, err := os.Lstat(dead)
		return errors.Is(err, os.ErrNotExist)
	}, "swept")
	return r
}

// launchRelay does not say hello.
func launchRelay(t testing.TB, grace time.Duration) *relayed {
	t.Helper()
	r := &relayed{tmp: remotetest.ShortTemp(t), stderr: remotetest.NewOutput(), exited: make(chan struct{})}
	r.cmd = remotetest.Role(context.Background(), "relay", r.tmp, grace.String())
	r.cmd.Stderr = r.stderr
	return r
}

// startOrdinaryRelay is startRelay as an ordinary user, whose step runners can isolate their builds.
func startOrdinaryRelay(t testing.TB) *relayed {
	t.Helper()
	r := launchRelay(t, time.Minute)
	home := filepath.Join(r.tmp, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(home, remotetest.Nobody, remotetest.Nobody))
		require.NoError(t, os.Chmod(r.tmp, 0o777|os.ModeSticky))
		remotetest.AsNobody(t, r.cmd)
	}
	r.cmd.Env = append(r.cmd.Env, "HOME="+home)
	r.manager = manage(t, r.stdin, r.stdout(t))
	return r
}

// stdout starts the relay and returns its stdout.
func (r *relayed) stdout(t testing.TB) *os.File {
	t.Helper()
	out, theirs, err := os.Pipe()
	require.NoError(t, err)
	r.start(t, theirs)
	t.Cleanup(func() { out.Close() })
	return out
}

// start starts the relay with that stdout, which it closes here, and returns its stdin.
func (r *relayed) start(t testing.TB, stdout *os.File) *os.File {
	t.Helper()
	near, far, err := os.Pipe()
	require.NoError(t, err)
	r.stdin, r.cmd.Stdin, r.cmd.Stdout = far, near, stdout
	require.NoError(t, r.cmd.Start())
	near.Close()
	stdout.Close()
	go func() {
		r.cmd.Wait()
		close(r.exited)
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.exited
		far.Close()
	})
	return far
}

// manage shakes hands with a relay.
func manage(t testing.TB, in io.WriteCloser, out io.ReadCloser) *manager {
	t.Helper()
	_, err := io.WriteString(in, wire.ManagerHello(wire.RelayVersion))
	require.NoError(t, err)
	hello := make([]byte, len(wire.RelayHello(wire.RelayVersion)))
	_, err = io.ReadFull(out, hello)
	require.NoError(t, err)
	require.Equal(t, wire.RelayHello(wire.RelayVersion), string(hello), "and nothing before")
	session, err := yamux.Client(&duplex{out, in}, yamuxConfig())
	require.NoError(t, err)
	t.Cleanup(func() { session.Close() })
	return &manager{session}
}

// yamuxConfig is that of the library, as a peer of another make.
func yamuxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.AcceptBacklog = 1024
	cfg.EnableKeepAlive = false
	cfg.MaxStreamWindowSize = wire.MaxRelayWindow
	cfg.StreamOpenTimeout = 0
	cfg.LogOutput = io.Discard
	return cfg
}

// duplex is stdin and stdout of a relay as one connection.
type duplex struct {
	io.ReadCloser
	in io.WriteCloser
}

func (d *duplex) Write(p []byte) (int, error) { return d.in.Write(p) }

func (d *duplex) Close() error { return errors.Join(d.in.Close(), d.ReadCloser.Close()) }

// requireExit waits for the relay's end and requires the exit code and that it said want on stderr.
func (r *relayed) requireExit(t testing.TB, code int, want string) {
	t.Helper()
	<-r.exited
	require.Equal(t, code, r.cmd.ProcessState.ExitCode(), "%v: %s", r.cmd.ProcessState, r.stderr)
	require.Contains(t, r.stderr.String(), want)
	if want == "" {
		require.Empty(t, r.stderr.String())
	}
}

// children are the relay's children, the ended ones too.
func (r *relayed) children(t testing.TB) []string {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	require.NoError(t, err)
	require.NotEmpty(t, lists, "this test needs a kernel with CONFIG_PROC_CHILDREN")
	var all []string
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		all = append(all, strings.Fields(string(text))...)
	}
	return all
}

// files is how many files the relay has open.
func (r *relayed) files(t testing.TB) int {
	t.Helper()
	return len(remotetest.Names(t, fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid)))
}

// call is a stream whose request was sent.
type call struct{ *yamux.Stream }

// startReq asks for a process.
func (m *manager) startReq(t testing.TB, request wire.RelayStart) *call {
	t.Helper()
	message, err := wire.AppendRelayStart(nil, request)
	require.NoError(t, err)
	return m.raw(t, message)
}

// connectReq asks for a connection.
func (m *manager) connectReq(t testing.TB, request wire.RelayConnect) *call {
	t.Helper()
	message, err := wire.AppendRelayConnect(nil, request)
	require.NoError(t, err)
	return m.raw(t, message)
}

// raw opens a stream that begins with message.
func (m *manager) raw(t testing.TB, message []byte) *call {
	t.Helper()
	s, err := m.session.OpenStream()
	require.NoError(t, err)
	_, err = s.Write(message)
	require.NoError(t, err)
	return &call{s}
}

// sh starts a shell with script.
func (m *manager) sh(t testing.TB, script string, args ...string) *call {
	t.Helper()
	c := m.startReq(t, wire.RelayStart{Argv: append([]string{"sh", "-c", script, "sh"}, args...)})
	c.granted(t)
	return c
}

func (c *call) granted(t testing.TB) *call {
	t.Helper()
	response, err := wire.ReadRelayResponse(c)
	require.NoError(t, err)
	require.Equal(t, wire.RelayResponse{}, response)
	return c
}

// refused requires that the request is refused and the stream closed, and closes it.
func (c *call) refused(t testing.TB, code wire.RelayCode, want string) {
	t.Helper()
	response, err := wire.ReadRelayResponse(c)
	require.NoError(t, err)
	require.Equal(t, code, response.Code, response.Text)
	require.Contains(t, response.Text, want)
	c.ended(t)
}

// ended requires the end of the stream.
func (c *call) ended(t testing.TB) {
	t.Helper()
	_, err := io.ReadFull(c, make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
}

func (c *call) send(t testing.TB, kind wire.RelayFrame, payload string) {
	t.Helper()
	_, err := c.Write(wire.AppendFrame(nil, kind, []byte(payload)))
	require.NoError(t, err)
}

// next reads a frame.
func (c *call) next(t testing.TB) (wire.RelayFrame, []byte) {
	t.Helper()
	kind, n, err := wire.ReadFrameHeader(c)
	require.NoError(t, err)
	payload, err := wire.ReadFramePayload(c, n)
	require.NoError(t, err)
	return kind, payload
}

// line reads frames of stdout until there is a whole line, and drops the rest.
func (c *call) line(t testing.TB) string {
	t.Helper()
	var text []byte
	for {
		kind, payload := c.next(t)
		require.Equal(t, wire.FrameData, kind, "%s", payload)
		text = append(text, payload...)
		if line, _, whole := bytes.Cut(text, []byte("\n")); whole {
			return string(line)
		}
	}
}

// pid is line for a number.
func (c *call) pid(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(c.line(t))
	require.NoError(t, err)
	return n
}

// result is the output and the exit of a process.
type result struct {
	out, errs string
	exit      wire.RelayExit
}

// finish reads on to the end of the process, granting more output as it comes.
func (c *call) finish(t testing.TB) result {
	t.Helper()
	var out, errs bytes.Buffer
	ended := false
	for {
		kind, payload := c.next(t)
		switch kind {
		case wire.FrameData:
			require.False(t, ended)
			out.Write(payload)
			c.grant(t, kind, len(payload))
		case wire.FrameStderr:
			errs.Write(payload)
			c.grant(t, kind, len(payload))
		case wire.FrameEnd:
			require.False(t, ended)
			ended = true
		case wire.FrameCredit:
		case wire.FrameExit:
			require.True(t, ended, "stdout ends before")
			exit, err := wire.ParseRelayExit(payload)
			require.NoError(t, err)
			c.ended(t)
			return result{out.String(), errs.String(), exit}
		default:
			require.Fail(t, "unexpected frame", "%q", kind)
		}
	}
}

func (c *call) grant(t testing.TB, kind wire.RelayFrame, n int) {
	t.Helper()
	_, err := c.Write(wire.RelayCredit{Kind: kind, N: uint32(n)}.Append(nil))
	require.NoError(t, err)
}

// running reports whether process pid runs; one that has ended and was not reaped does not.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

// buildDir makes the directory of build id below tmp as serve does: the relay sweeps a directory that is not locked.
func buildDir(t testing.TB, tmp, id string) string {
	t.Helper()
	return lockedDir(t, filepath.Join(tmp, wire.SocketBase, id))
}

// lockedDir is buildDir in any base.
func lockedDir(t testing.TB, path string) string {
	t.Helper()
	dir, err := socketdir.Open(t.Context(), filepath.Join(path, wire.SocketName))
	require.NoError(t, err)
	t.Cleanup(func() { _ = dir.Remove(context.Background()) }) // the test may have closed it to us
	return path
}

// listenIn listens in the directory of build id and returns the socket's path.
func listenIn(t testing.TB, tmp, id string) (*net.UnixListener, string) {
	t.Helper()
	buildDir(t, tmp, id)
	path := remotetest.SocketIn(t, tmp, id)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln, path
}
