package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
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

func client(t testing.TB, path string) *Client {
	t.Helper()
	c, err := NewClient(path)
	require.NoError(t, err)
	return c
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
	status, err := client(t, s.Path()).Status(sshtest.Within(t))
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
	state := func(i int) string {
		status, err := c.Status(sshtest.Within(t))
		require.NoError(t, err)
		return status.Instances[i].State
	}
	for i, id := range []string{"vm-1", "[::1]:22/x"} {
		require.NoError(t, c.Drain(sshtest.Within(t), id))
		require.Equal(t, "draining", state(i))
		require.NoError(t, c.Undrain(sshtest.Within(t), id))
		require.Equal(t, "ready", state(i))
	}
	require.EqualError(t, c.Drain(sshtest.Within(t), "vm-7"), `there is no instance "vm-7"`)
	require.EqualError(t, c.Undrain(sshtest.Within(t), "../status"), `there is no instance "../status"`)
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
	_, err := client(t, path).Status(sshtest.Within(t))
	require.EqualError(t, err, "no process listens at "+path+": the stepmux run has died, or this is not a control socket")
	newManager(t).serve(t, path)
	_, err = client(t, path).Status(sshtest.Within(t))
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
	}
	_, err := client(t, path).Status(sshtest.Within(t))
	require.NoError(t, err, "the one that lives goes on")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "x", string(text))
}

func TestWithoutANameTheOnlyRunIsFound(t *testing.T) {
	dir := sshtest.SocketDir(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err := NewClient("")
	require.ErrorContains(t, err, "no stepmux run of this user is under way")
	m := newManager(t)
	s := m.serve(t, "")
	require.Equal(t, fmt.Sprintf("%s/stepmux/%d.sock", dir, os.Getpid()), s.Path())
	info, err := os.Stat(filepath.Dir(s.Path()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	staleSocket(t, filepath.Join(dir, "stepmux", "1.sock"))
	_, err = client(t, "").Status(sshtest.Within(t))
	require.NoError(t, err, "that of a dead run does not count")

	other := m.serve(t, filepath.Join(dir, "stepmux", "0.sock")) // before any process's own
	_, err = NewClient("")
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

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	s := newManager(t).serve(t, socketPath(t))
	for name, test := range map[string]struct {
		request string
		want    string
	}{
		"not HTTP":     {"hello\r\n\r\n", "400 Bad Request"},
		"wrong path":   {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"},
		"wrong method": {"GET /v1/instances/vm-1/drain HTTP/1.1\r\nHost: x\r\n\r\n", "405 Method Not Allowed"},
		"huge header":  {"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 64<<10) + "\r\n\r\n", "431 "},
	} {
		conn, err := net.Dial("unix", s.Path())
		require.NoError(t, err)
		go func() { _, _ = io.WriteString(conn, test.request) }()
		var answer [64]byte
		n, err := io.ReadAtLeast(conn, answer[:], 20)
		require.NoError(t, err, name)
		require.Contains(t, string(answer[:n]), test.want, name)
		conn.Close()
	}
}

func TestAnswersThatMakeNoSenseAreErrors(t *testing.T) {
	for body, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]x":                "its answer is not valid",
		"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n":                 "it answered 500 Oops",
		"HTTP/1.1 404 No\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}": "x",
		"": "only the user that started it",
	} {
		path := socketPath(t)
		listener, err := net.Listen("unix", path)
		require.NoError(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1<<10))
			_, _ = io.WriteString(conn, body)
		}()
		_, err = client(t, path).Status(sshtest.Within(t))
		require.ErrorContains(t, err, want)
		<-served
		listener.Close()
	}
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
