package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// manager is a manager of one VM, and of one that is not there.
type manager struct {
	provider *instance.Provider
	group    *instance.Group
}

func newManager(t testing.TB) *manager {
	t.Helper()
	s := sshtest.InProcess(t, embeddedvm.Config{})
	ssh := mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}
	group, err := instance.NewGroup(
		instance.Instance{
			ID: "vm-1", Addr: s.Addr, SSH: ssh, Capacity: 2, MaxUses: 9,
			Labels: map[string]string{"zone": "a"},
		},
		instance.Instance{ID: "[::1]:22/x", Addr: "[::1]:22", SSH: ssh},
	)
	require.NoError(t, err)
	provider, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	t.Cleanup(func() { provider.Close() })
	return &manager{provider, group}
}

func (m *manager) serve(t testing.TB, path string) *Server {
	t.Helper()
	s, err := Serve(Config{Path: path, Provider: m.provider, Group: m.group, Version: "v1"})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func client(t testing.TB, path string) pb.ManagerClient {
	t.Helper()
	conn, err := pb.Dial(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return pb.NewManagerClient(conn)
}

// ask returns the status of the run whose socket is at a path.
func ask(t testing.TB, path string) (Status, error) {
	t.Helper()
	return Ask(sshtest.Within(t), client(t, path))
}

func socketPath(t testing.TB) string { return filepath.Join(sshtest.SocketDir(t), "c.sock") }

func TestStatusTellsWhatThereIs(t *testing.T) {
	m := newManager(t)
	e := m.provider.Executor(instance.Build{ID: "b-1"})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	defer func() { require.NoError(t, e.Cleanup(sshtest.Within(t))) }()
	s, err := Serve(Config{
		Path: socketPath(t), Provider: m.provider, Group: m.group, Version: "v1",
		InventoryErr: func() error { return errors.New("fleet.yml:1:1: wrong") },
	})
	require.NoError(t, err)
	defer s.Close()
	status, err := ask(t, s.Path())
	require.NoError(t, err)
	require.Equal(t, "v1", status.Version)
	require.Equal(t, os.Getpid(), status.PID)
	require.Equal(t, "fleet.yml:1:1: wrong", status.Inventory)
	require.Len(t, status.Instances, 2)
	vm := status.Instances[0]
	require.Equal(t, "vm-1", vm.ID)
	require.Equal(t, "ready", vm.State)
	require.Equal(t, "up", vm.Conn.State)
	require.Equal(t, 1, vm.Conn.Made)
	require.NotNil(t, vm.Conn.Since)
	require.Contains(t, vm.Conn.Server, "SSH-2.0-")
	require.Equal(t, "unknown", vm.Conn.Sessions.Source)
	require.Equal(t, "b-1", vm.Builds[0].ID)
	require.Equal(t, []int{1, 9, 2}, []int{vm.Uses, vm.MaxUses, vm.Capacity})
	require.Equal(t, "none", status.Instances[1].Conn.State)

	var text bytes.Buffer
	require.NoError(t, status.WriteText(&text, vm.Builds[0].Since.Add(90*time.Second), true))
	require.Regexp(t, `(?m)^vm-1 +ready +up 1m\d+s +- +- +0 +1/2 +1m30s +1/9 +zone=a$`, text.String())
	require.Regexp(t, `(?m)^b-1 +vm-1 +1m30s$`, text.String())
	require.Contains(t, text.String(), "inventory not read, the one before is in force: fleet.yml:1:1: wrong\n")
	require.Contains(t, text.String(), fmt.Sprintf("0 builds waiting for a slot; process %d,", os.Getpid()))
	status.Waiting, status.Held = 3, 2
	text.Reset()
	require.NoError(t, status.WriteText(&text, time.Now(), true))
	require.Contains(t, text.String(), "3 builds waiting for a slot, 2 of them because all VMs that fit are aside (")
}

func TestDrainAndUndrain(t *testing.T) {
	m := newManager(t)
	c := client(t, m.serve(t, socketPath(t)).Path())
	drain := func(ids ...string) error {
		_, err := c.Drain(sshtest.Within(t), &pb.DrainRequest{Instances: ids})
		return err
	}
	undrain := func(ids ...string) error {
		_, err := c.Undrain(sshtest.Within(t), &pb.UndrainRequest{Instances: ids})
		return err
	}
	requireStates := func(want ...string) {
		t.Helper()
		status, err := Ask(sshtest.Within(t), c)
		require.NoError(t, err)
		require.Equal(t, want, []string{status.Instances[0].State, status.Instances[1].State})
	}
	require.NoError(t, drain("[::1]:22/x"))
	requireStates("ready", "draining")
	require.NoError(t, drain("vm-1", "[::1]:22/x"))
	requireStates("draining", "draining")
	require.NoError(t, undrain("[::1]:22/x"))
	requireStates("draining", "ready")
	require.NoError(t, undrain("vm-1"))
	requireStates("ready", "ready")
	requireRefused(t, drain("vm-7"), codes.NotFound, `there is no instance "vm-7"`)
	requireRefused(t, undrain("../status"), codes.NotFound, `there is no instance "../status"`)
	requireStates("ready", "ready")
}

func requireRefused(t *testing.T, err error, code codes.Code, message string) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	require.Contains(t, status.Convert(err).Message(), message)
}

// A run has no queue and keeps nothing: its other calls, and the parts of a drain that a manager keeps, say so.
func TestARunSaysThatItIsNoManager(t *testing.T) {
	s := newManager(t).serve(t, socketPath(t))
	c, ctx := client(t, s.Path()), sshtest.Within(t)
	for _, req := range []*pb.DrainRequest{
		{Instances: []string{"vm-1"}, Note: "broken"}, {Instances: []string{"vm-1"}, For: durationpb.New(time.Hour)},
	} {
		_, err := c.Drain(ctx, req)
		requireRefused(t, err, codes.InvalidArgument, "--note and --for are for managers")
	}
	status, err := Ask(ctx, c)
	require.NoError(t, err)
	require.Equal(t, "ready", status.Instances[0].State)

	conn, err := pb.Dial(s.Path())
	require.NoError(t, err)
	defer conn.Close()
	refused := 0
	for _, method := range pb.Manager_ServiceDesc.Methods {
		err := conn.Invoke(ctx, "/"+pb.Manager_ServiceDesc.ServiceName+"/"+method.MethodName, &pb.GetRequest{}, &pb.Build{})
		if err != nil {
			requireRefused(t, err, codes.Unimplemented, "this is a stepmux run, not a manager: ")
			refused++
		}
	}
	require.Equal(t, len(pb.Manager_ServiceDesc.Methods)-3, refused)
	for i := range pb.Manager_ServiceDesc.Streams {
		stream := &pb.Manager_ServiceDesc.Streams[i]
		call, err := conn.NewStream(ctx, stream, "/"+pb.Manager_ServiceDesc.ServiceName+"/"+stream.StreamName)
		require.NoError(t, err)
		requireRefused(t, call.RecvMsg(&pb.Build{}), codes.Unimplemented, "this is a stepmux run, not a manager: ")
	}
}

func TestTheSocketIsItsUsersAlone(t *testing.T) {
	s := newManager(t).serve(t, socketPath(t))
	info, err := os.Stat(s.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.True(t, allowed(0))
	require.True(t, allowed(uint32(os.Geteuid())))
	require.False(t, allowed(uint32(os.Geteuid())+4711))
	s.Close()
	s.Close()
	_, err = os.Stat(s.Path())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// staleSocket leaves a socket as a process does that is killed.
func staleSocket(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

func TestTheSocketOfADeadRunIsReplaced(t *testing.T) {
	path := socketPath(t)
	staleSocket(t, path)
	newManager(t).serve(t, path)
	_, err := ask(t, path)
	require.NoError(t, err)
}

func TestWhatIsNotADeadRunsSocketIsLeftAlone(t *testing.T) {
	m := newManager(t)
	path := socketPath(t)
	m.serve(t, path)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	for at, want := range map[string]string{
		path:                               "another stepmux run or manager uses it; name another path",
		file:                               "the path exists and is not a socket; name another path",
		"/no/such/dir/c.sock":              "no such file or directory",
		"/tmp/" + strings.Repeat("x", 200): "more than 107 bytes",
	} {
		_, err := Serve(Config{Path: at, Provider: m.provider, Group: m.group})
		require.ErrorContains(t, err, want)
		_, err = Listen(at, -1) // a manager's
		require.ErrorContains(t, err, want)
	}
	_, err := ask(t, path)
	require.NoError(t, err, "the one that lives goes on")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "x", string(text))
}

func TestWithoutANameTheOnlyRunIsFound(t *testing.T) {
	dir := sshtest.SocketDir(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err := Find()
	require.ErrorContains(t, err, "no stepmux run of this user is under way")
	m := newManager(t)
	s := m.serve(t, "")
	require.Equal(t, fmt.Sprintf("%s/stepmux/%d.sock", dir, os.Getpid()), s.Path())
	info, err := os.Stat(filepath.Dir(s.Path()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	staleSocket(t, filepath.Join(dir, "stepmux", "1.sock"))
	found, err := Find()
	require.NoError(t, err)
	require.Equal(t, s.Path(), found, "that of a dead run does not count")

	other := m.serve(t, filepath.Join(dir, "stepmux", "0.sock")) // before any process's own
	_, err = Find()
	require.ErrorContains(t, err, "2 runs are under way; name the socket of one with --control: "+other.Path())
	other.Close()
	s.Close()
	again := m.serve(t, "")
	_, err = os.Stat(filepath.Join(dir, "stepmux", "1.sock"))
	require.ErrorIs(t, err, os.ErrNotExist, "the next run sweeps up after one that was killed")
	again.Close()
	require.NoDirExists(t, filepath.Join(dir, "stepmux"), "nothing is left")
}

func TestADirectoryOfSomebodyElsesIsRefused(t *testing.T) {
	dir := sshtest.SocketDir(t)
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", dir)
	m := newManager(t)
	at := Dir()
	require.Equal(t, fmt.Sprintf("%s/stepmux-run-%d", dir, os.Getuid()), at)
	require.NoError(t, os.Mkdir(at, 0o755))
	_, err := Serve(Config{Provider: m.provider, Group: m.group})
	require.ErrorContains(t, err, "mode 0700")
	require.NoError(t, os.Remove(at))
	require.NoError(t, os.Symlink(t.TempDir(), at))
	_, err = Serve(Config{Provider: m.provider, Group: m.group})
	require.ErrorContains(t, err, "is not a directory of this user's")
}

func TestALockThatIsHeldForEverEndsTheWait(t *testing.T) {
	m, path := newManager(t), socketPath(t)
	dir, err := os.Open(filepath.Dir(path))
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, lockDir(dir))
	_, err = Serve(Config{Path: path, Provider: m.provider, Group: m.group})
	require.ErrorContains(t, err, "control socket: lock ")
}

func TestManagersThatComeAndGoAtOnceDoNotDisturbEachOther(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", sshtest.SocketDir(t))
	m := newManager(t)
	errs := make(chan error)
	for range 4 {
		go func() {
			var failed error
			for range 50 {
				s, err := Serve(Config{Provider: m.provider, Group: m.group})
				switch {
				case err == nil:
					s.Close()
				case strings.Contains(err.Error(), "another stepmux run"): // all are of this process
				default:
					failed = err
				}
			}
			errs <- failed
		}()
	}
	for range 4 {
		require.NoError(t, <-errs)
	}
}

// A stepmux ps, drain or undrain that speaks HTTP/1.1 shows the error of the answer.
func TestClientsOfAnotherProtocolAreRefused(t *testing.T) {
	s := newManager(t).serve(t, socketPath(t))
	for name, test := range map[string]struct{ said, want string }{
		"ps of the version before": {"GET /v1/status HTTP/1.1\r\nHost: stepmux\r\nConnection: close\r\n\r\n", noHTTP1},
		"drain of the version before": {
			"POST /v1/instances/vm-1/drain HTTP/1.1\r\nHost: stepmux\r\nContent-Length: 0\r\n\r\n", noHTTP1,
		},
		"something else":    {"hello\r\n\r\n", noHTTP1},
		"nearly HTTP/2":     {"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", ""},
		"nothing":           {"", ""},
		"part of a preface": {"PR", ""},
	} {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Path(), Net: "unix"})
		require.NoError(t, err)
		_, err = io.WriteString(conn, test.said)
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(sshtest.Bound)))
		said, err := io.ReadAll(conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		if test.want == "" {
			require.NotContains(t, string(said), "HTTP/1.1", name)
		} else {
			resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(said)), nil)
			require.NoError(t, err, name)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err, name)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusHTTPVersionNotSupported, resp.StatusCode, name)
			require.JSONEq(t, test.want, string(body), name)
		}
		require.NoError(t, conn.Close())
	}
	_, err := ask(t, s.Path())
	require.NoError(t, err, "the run goes on")
}

func TestLargeRequestsAreRefused(t *testing.T) {
	c := client(t, newManager(t).serve(t, socketPath(t)).Path())
	_, err := c.Drain(sshtest.Within(t), &pb.DrainRequest{Instances: []string{strings.Repeat("x", maxRequest)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	_, err = c.Status(metadata.AppendToOutgoingContext(sshtest.Within(t), "x", strings.Repeat("y", 4*maxHeaders)),
		&pb.StatusRequest{})
	require.Error(t, err)
}

func TestTablesHaveNothingATerminalObeys(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	s := Status{Instances: []VM{{
		ID: "a", State: "aside", Reason: "no\x1b[2J\nway", RetryAt: &at, Labels: map[string]string{"x": "\x1b"},
		Conn:  Connection{State: "up", Since: &at, Sessions: Sessions{Open: 2, Limit: 10, Waiting: 3}},
		Route: Route{Start: "relay"},
	}}, JumpHosts: []JumpHost{{ID: "b\x1b", Conn: Connection{State: "up", Since: &at, Streams: 7}}}}
	var text bytes.Buffer
	require.NoError(t, s.WriteText(&text, at.Add(-4*time.Second), false))
	require.NotRegexp(t, "[^\n -~]", text.String())
	require.Contains(t, text.String(), "a: no?[2J way (tried again in 4s)\n")
	require.Regexp(t, `a +aside +up 0s +relay/- +- +2/10 \+3 wait +0/0 +- `, text.String())
	require.Regexp(t, `JUMP HOST +CONNECTION +CARRIES\nb\? +up 0s +7\n`, text.String())
	line, err := json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(line), `"retry_at":"2023-`)
}
