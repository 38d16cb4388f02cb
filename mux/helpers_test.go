package mux_test

import (
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/internal/vmtest"
	"github.com/stepmux/stepmux/mux"
)

// config returns how to log in to s.
func config(s *sshtest.Server) *mux.Config {
	return &mux.Config{
		User:     s.User,
		Auth:     []mux.Auth{mux.Key("of the test", s.Signer)},
		HostKeys: mux.PinnedHostKeys(s.HostKey),
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

// servers are those every promise of the package is tested on.
var servers = []struct {
	name  string
	start func(testing.TB) *sshtest.Server
}{
	{"in-process", func(t testing.TB) *sshtest.Server { return sshtest.InProcess(t, vmtest.Config{}) }},
	{"OpenSSH", func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t) }},
	{"OpenSSH MaxSessions 2", func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t, "MaxSessions 2") }},
}

// onServers runs test against each of the servers.
func onServers(t *testing.T, test func(*testing.T, *sshtest.Server)) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, s.start(t))
		})
	}
}

// duplex is what a process and a socket have in common.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// kinds are the ways to a duplex stream: each starts a peer that behaves as its name says.
var kinds = []struct {
	name string
	open func(t testing.TB, c *mux.Conn, peer string) duplex
}{
	{"session", openSession},
	{"streamlocal", openStreamlocal},
}

// onStreams runs test over each kind of stream against each of the servers, through a proxy that can
// break the connection.
func onStreams(t *testing.T, test func(*testing.T, *rig)) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
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

func openSession(t testing.TB, c *mux.Conn, peer string) duplex {
	t.Helper()
	// What is silent ends with its server, which its parent belongs to.
	line := map[string]string{
		echo:   "exec cat",
		silent: "exec tail --pid=$PPID -f /dev/null",
		flood:  "exec cat /dev/zero",
	}[peer]
	p, err := c.Start(sshtest.Within(t), mux.Command{Line: line})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func openStreamlocal(t testing.TB, c *mux.Conn, peer string) duplex {
	t.Helper()
	s, err := c.DialUnix(sshtest.Within(t), listen(t, peer))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// listen starts a peer on a unix socket.
func listen(t testing.TB, peer string) string {
	t.Helper()
	path := filepath.Join(sshtest.SocketDir(t), "peer.sock")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				stop := make(chan struct{})
				wg.Go(func() {
					select {
					case <-done:
						conn.Close()
					case <-stop:
					}
				})
				defer close(stop)
				behave(conn, peer, done)
			})
		}
	})
	t.Cleanup(func() {
		close(done)
		ln.Close()
		wg.Wait()
	})
	return path
}

func behave(conn net.Conn, peer string, done <-chan struct{}) {
	switch peer {
	case echo:
		_, _ = io.Copy(conn, conn)
	case silent:
		<-done
	case flood:
		for buf := make([]byte, 32<<10); ; {
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	}
}

// inBackground runs fn and returns a channel with its error.
func inBackground(fn func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return done
}

// receive returns what comes from ch, and fails the test when nothing does.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-sshtest.Within(t).Done():
		require.FailNow(t, "nothing happened")
		panic("unreachable")
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, sshtest.Bound, 2*time.Millisecond)
}

// requireLost checks that err says that the connection was lost, and not that something ended.
func requireLost(t testing.TB, err error) {
	t.Helper()
	lost := (*mux.ConnError)(nil)
	require.ErrorAs(t, err, &lost)
	require.NotErrorIs(t, err, io.EOF, "a loss must not look like an end")
}

func exitLine(status int) string { return "exit " + strconv.Itoa(status) }
