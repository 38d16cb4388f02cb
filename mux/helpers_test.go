package mux_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/mux/relay"
)

// config returns how to log in to s.
func config(s *sshtest.Server) *mux.Config {
	return &mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}
}

func dial(t testing.TB, s *sshtest.Server) *mux.Conn { return dialWith(t, s, config(s)) }

func dialWith(t testing.TB, s *sshtest.Server, cfg *mux.Config) *mux.Conn {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// server is a kind of SSH server.
type server struct {
	name  string
	start func(testing.TB) *sshtest.Server
}

// servers are the servers on which every promise of the package is tested.
var servers = []server{
	{"in-process", func(t testing.TB) *sshtest.Server { return sshtest.InProcess(t, embeddedvm.Config{}) }},
	{"OpenSSH", func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t) }},
	{"OpenSSH MaxSessions 2", func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t, "MaxSessions 2") }},
}

// onServers runs test against each of the servers.
func onServers(t *testing.T, test func(*testing.T, *sshtest.Server)) {
	t.Helper()
	onEach(t, servers, test)
}

func onEach(t *testing.T, servers []server, test func(*testing.T, *sshtest.Server)) {
	t.Helper()
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, s.start(t))
		})
	}
}

// duplex is a Process or a Stream.
type duplex interface {
	net.Conn
	CloseWrite() error
}

// kinds are the routes of a duplex stream. Each starts a peer that behaves as its name says.
var kinds = []struct {
	name string
	open func(t testing.TB, c *mux.Conn, peer string) duplex
}{
	{"session", func(t testing.TB, c *mux.Conn, peer string) duplex { return start(t, c, peerLine(peer), nil) }},
	{"streamlocal", func(t testing.TB, c *mux.Conn, peer string) duplex { return dialUnix(t, c, listen(t, peer)) }},
	{"relay process", func(t testing.TB, c *mux.Conn, peer string) duplex {
		return start(t, relayOf(t, c), peerLine(peer), nil)
	}},
	{"relay socket", func(t testing.TB, c *mux.Conn, peer string) duplex {
		return dialUnix(t, relayOf(t, c), listenAt(t, buildSocket(t), peer))
	}},
}

// onStreams runs test over each kind of stream against the servers of each make, through a proxy that can break the
// connection. How many sessions a server allows is nothing to a stream.
func onStreams(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	onEach(t, servers[:2], func(t *testing.T, s *sshtest.Server) {
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) {
				proxy := sshtest.Proxy(t, s.Addr)
				conn := dial(t, s.Via(t, proxy.Addr()))
				test(t, &rig{conn: conn, proxy: proxy, open: func(peer string) duplex { return k.open(t, conn, peer) }})
			})
		}
	})
}

type rig struct {
	conn  *mux.Conn
	proxy *sshtest.TCPProxy
	open  func(peer string) duplex
}

// The peers.
const (
	echo   = "echo"   // sends back what it gets, until its input ends
	silent = "silent" // neither reads nor writes
	flood  = "flood"  // writes without end
)

// peerLine returns the command line of a peer that is a process.
func peerLine(peer string) string {
	return map[string]string{
		echo:   "exec cat",
		silent: "exec tail --pid=$PPID -f /dev/null", // ends with its server, which its parent belongs to
		flood:  "exec cat /dev/zero",
	}[peer]
}

// starter is a Conn or its Relay.
type starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
	DialUnix(ctx context.Context, path string) (*mux.Stream, error)
}

// relayTemp is the directory for temporary files of the relays under test. TestMain removes it.
func relayTemp(t testing.TB) string {
	t.Helper()
	relayTempOnce.Do(func() {
		dir, err := os.MkdirTemp("", "r") //nolint:usetesting // one for all tests, and short enough for sockets
		if err != nil {
			panic(err)
		}
		relayTempDir = dir
	})
	return relayTempDir
}

var (
	relayTempOnce sync.Once
	relayTempDir  string
)

// relayCommand is how a relay is started.
func relayCommand(t testing.TB) mux.Command {
	t.Helper()
	return mux.Command{
		Argv: append(runnertest.Command(t), "steps", "relay", "--temp-dir", relayTemp(t), "--grace", "200ms"),
	}
}

// relayOf returns the relay of c.
func relayOf(t testing.TB, c *mux.Conn) *relay.Relay {
	t.Helper()
	cmd := relayCommand(t) // builds the program first, which takes no part of the bound
	r, err := c.Relay(sshtest.Within(t), cmd)
	require.NoError(t, err)
	return r
}

func dialUnix(t testing.TB, s starter, path string) *mux.Stream {
	t.Helper()
	stream, err := s.DialUnix(sshtest.Within(t), path)
	require.NoError(t, err)
	t.Cleanup(func() { stream.Close() })
	return stream
}

// buildSocket returns the path of a socket that the relays under test connect to.
func buildSocket(t testing.TB) string { return runnertest.BuildSocket(t, relayTemp(t)) }

// listen starts a peer on a unix socket.
func listen(t testing.TB, peer string) string {
	t.Helper()
	return listenAt(t, filepath.Join(sshtest.SocketDir(t), "peer.sock"), peer)
}

func listenAt(t testing.TB, path, peer string) string {
	t.Helper()
	return sshtest.Listen(t, "unix", path, func(conn net.Conn) {
		switch peer {
		case echo:
			_, _ = io.Copy(conn, conn)
		case silent:
			<-t.Context().Done()
		case flood:
			for buf := make([]byte, 32<<10); ; {
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		}
	})
}

// inBackground runs fn and returns a channel with its error.
func inBackground(fn func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return done
}

// fill writes to s until nothing more fits, and returns the error of the Write that waits then.
func fill(t testing.TB, s duplex) <-chan error {
	t.Helper()
	var written atomic.Int64
	wrote := inBackground(func() error {
		for buf := make([]byte, 16<<10); ; {
			n, err := s.Write(buf)
			if err != nil {
				return err
			}
			written.Add(int64(n))
		}
	})
	last := int64(-1)
	require.Eventually(t, func() bool {
		now := written.Load()
		still := now == last
		last = now
		return still
	}, sshtest.Bound, 100*time.Millisecond)
	return wrote
}

// receive returns what comes from ch, and fails the test when nothing does.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	return receiveWithin(t, sshtest.Bound, ch)
}

func receiveWithin[T any](t testing.TB, bound time.Duration, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		require.FailNow(t, "nothing happened")
		panic("unreachable")
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, sshtest.Bound, 2*time.Millisecond)
}

// requireLost checks that err is a lost connection, and not the end of something.
func requireLost(t testing.TB, err error) {
	t.Helper()
	lost := (*mux.ConnError)(nil)
	require.ErrorAs(t, err, &lost)
	require.NotErrorIs(t, err, io.EOF, "a loss must not look like an end")
}

func exitLine(status int) string { return "exit " + strconv.Itoa(status) }
