package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

// joined returns a call that is connected, and the server's end.
func joined(t *testing.T, r *relayed) (*call, *net.UnixConn) {
	t.Helper()
	return joinedTo(t, r, "b")
}

// joinedTo is joined for the socket of that build.
func joinedTo(t *testing.T, r *relayed, build string) (*call, *net.UnixConn) {
	t.Helper()
	ln, path := listenIn(t, r.tmp, build)
	c := r.connectReq(t, wire.RelayConnect{Path: path}).granted(t)
	conn, err := ln.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return c, conn
}

// expect requires that a frame comes.
func (c *call) expect(t testing.TB, kind wire.RelayFrame, payload string) {
	t.Helper()
	gotKind, got := c.next(t)
	require.Equal(t, string(rune(kind)), string(rune(gotKind)))
	require.Equal(t, payload, string(got))
}

func TestRelayJoinsAStreamAndASocket(t *testing.T) {
	r := startRelay(t)
	c, conn := joined(t, r)
	c.send(t, wire.FrameData, "")
	c.send(t, wire.FrameData, "hello")
	buf := make([]byte, 5)
	_, err := io.ReadFull(conn, buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf))
	_, err = io.WriteString(conn, "world")
	require.NoError(t, err)
	c.expect(t, wire.FrameData, "world")

	c.send(t, wire.FrameEnd, "")
	_, err = conn.Read(buf)
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(conn, "late")
	require.NoError(t, err)
	c.expect(t, wire.FrameData, "late")
	require.NoError(t, conn.Close())
	c.expect(t, wire.FrameEnd, "")
	c.ended(t)
	remotetest.Eventually(t, func() bool { return r.session.NumStreams() == 0 }, "nothing left")
}

// Much that a server sends is moved to stdout if that is a pipe, and copied otherwise.
func TestRelayCarriesFloodsOfSeveralServersSideBySide(t *testing.T) {
	for name, stdout := range map[string]func(t *testing.T) (near, far *os.File){
		"to a pipe": func(t *testing.T) (near, far *os.File) {
			near, far, err := os.Pipe()
			require.NoError(t, err)
			return near, far
		},
		"to a socket": func(t *testing.T) (near, far *os.File) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, theirs := stdout(t)
			r := launchRelay(t, time.Minute)
			r.manager = manage(t, r.start(t, theirs), out)
			t.Cleanup(func() { out.Close() })
			const most = 3 << 20 // less than a window: nobody reads while the servers send
			var calls []*call
			var sent [][]byte
			var servers sync.WaitGroup
			for i := range 3 {
				c, conn := joinedTo(t, r, fmt.Sprint("b", i))
				var data []byte
				for size := 1 + i; len(data) < most; size = size*5%100_000 + 1 {
					data = append(data, bytes.Repeat([]byte{byte(size)}, size)...)
				}
				calls, sent = append(calls, c), append(sent, data)
				servers.Go(func() {
					for size := 1; len(data) > 0; size = size*7%300_000 + 1 {
						n, err := conn.Write(data[:min(size, len(data))])
						if err != nil {
							return // the reader notices
						}
						data = data[n:]
					}
					conn.Close()
				})
			}
			servers.Wait()
			for i, c := range calls {
				var got []byte
				for kind, payload := c.next(t); kind == wire.FrameData; kind, payload = c.next(t) {
					got = append(got, payload...)
				}
				require.True(t, bytes.Equal(sent[i], got), "%d bytes came of %d, or others", len(got), len(sent[i]))
			}
		})
	}
}

func TestRelayServerThatOnlyEndsItsOutputCanStillBeSentTo(t *testing.T) {
	r := startRelay(t)
	c, conn := joined(t, r)
	require.NoError(t, conn.CloseWrite())
	c.expect(t, wire.FrameEnd, "")
	c.send(t, wire.FrameData, "still here")
	buf := make([]byte, 10)
	_, err := io.ReadFull(conn, buf)
	require.NoError(t, err)
	require.Equal(t, "still here", string(buf))
	require.NoError(t, conn.Close())
	c.ended(t)
}

func TestRelayServerThatGoesWithoutReadingEndsTheStream(t *testing.T) {
	r := startRelay(t)
	c, conn := joined(t, r)
	_, err := io.WriteString(conn, "last words")
	require.NoError(t, err)
	c.expect(t, wire.FrameData, "last words")
	for range 16 { // more than the socket takes
		c.send(t, wire.FrameData, remotetest.Repeat(wire.MaxRelayFrame))
	}
	require.NoError(t, conn.Close())
	c.expect(t, wire.FrameEnd, "")
	c.ended(t)
}

func TestRelayClosesTheSocketWithTheStream(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *call){
		"closed":       func(t *testing.T, c *call) { require.NoError(t, c.Close()) },
		"an end, then": func(t *testing.T, c *call) { c.send(t, wire.FrameEnd, ""); require.NoError(t, c.Close()) },
		"unread": func(t *testing.T, c *call) {
			c.send(t, wire.FrameSignal, "TERM")
		},
		"two ends": func(t *testing.T, c *call) { c.send(t, wire.FrameEnd, ""); c.send(t, wire.FrameEnd, "") },
		"data after the end": func(t *testing.T, c *call) {
			c.send(t, wire.FrameEnd, "")
			c.send(t, wire.FrameData, "x")
		},
		"half a frame": func(t *testing.T, c *call) {
			_, err := c.Write([]byte{'D', 0, 0, 9, 'x'})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		},
		"16 MiB": func(t *testing.T, c *call) {
			_, err := c.Write([]byte{'D', 0xff, 0xff, 0xff})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t)
			require.Equal(t, "warm\n", r.sh(t, "echo warm").finish(t).out)
			files := r.files(t)
			c, conn := joined(t, r)
			// The manager does not read, so that the relay is stuck in the other direction.
			require.NoError(t, conn.SetWriteDeadline(time.Now().Add(time.Minute)))
			flooded := make(chan error, 1)
			go func() {
				for {
					if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
						flooded <- err
						return
					}
				}
			}()
			remotetest.Eventually(t, func() bool {
				_, err := c.Read(make([]byte, 1))
				return err == nil
			}, "it floods")
			end(t, c)
			require.NotErrorIs(t, <-flooded, os.ErrDeadlineExceeded)
			c.Close()
			remotetest.Eventually(t, func() bool { return r.files(t) <= files }, "nothing left")
			require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out, "the others go on")
		})
	}
}

func TestRelayConnectsToSocketsOfBuildsOnly(t *testing.T) {
	r := startRelay(t)
	ln, path := listenIn(t, r.tmp, "real")
	go func() {
		if conn, err := ln.Accept(); err == nil {
			t.Error("somebody has connected")
			conn.Close()
		}
	}()
	base := filepath.Join(r.tmp, wire.SocketBase)
	real := filepath.Dir(path)
	other := filepath.Join(r.tmp, "other")
	ours := filepath.Join(r.tmp, wire.SocketBase+"-"+strconv.Itoa(os.Geteuid()))
	require.NoError(t, os.Symlink(base, ours))
	require.NoError(t, os.Symlink(real, filepath.Join(base, "link")))
	require.NoError(t, os.Symlink(r.tmp, other))
	linked := buildDir(t, r.tmp, "linked")
	require.NoError(t, os.Symlink(path, filepath.Join(linked, "s")))
	require.NoError(t, os.WriteFile(filepath.Join(linked, "file"), nil, 0o600))
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(linked, "dead"), Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	require.NoError(t, os.WriteFile(filepath.Join(base, "flat"), nil, 0o600))
	anothers := wire.RelayResponse{Code: wire.RelayForbidden, Text: "not one of our builds"}
	if os.Geteuid() == 0 { // whose builds may run as any user
		anothers = wire.RelayResponse{Code: wire.RelayNotFound, Text: "no such socket"}
	}
	for name, test := range map[string]struct {
		path string
		code wire.RelayCode
		want string
	}{
		"relative":              {"gitlab-runner-steps/real/s", wire.RelayForbidden, "not absolute"},
		"empty":                 {"", wire.RelayForbidden, "not absolute"},
		"another directory":     {"/var/run/docker.sock", wire.RelayForbidden, "connects to " + r.tmp},
		"another temporary one": {"/tmp/gitlab-runner-steps/b/s", wire.RelayForbidden, "not one of our builds"},
		"by way of a link": {
			filepath.Join(other, wire.SocketBase, "real", "s"), wire.RelayForbidden, "not one of our builds",
		},
		"the base of another": {
			filepath.Join(r.tmp, wire.SocketBase+"-12345", "b", "s"), anothers.Code, anothers.Text,
		},
		"no build":    {filepath.Join(base, "s"), wire.RelayForbidden, "connects to"},
		"too deep":    {filepath.Join(real, "sub", "s"), wire.RelayForbidden, "connects to"},
		"up and down": {real + "/../real/" + wire.SocketName, wire.RelayForbidden, "not clean"},
		"up":          {base + "/../s", wire.RelayForbidden, "not clean"},
		"too long": {
			filepath.Join(base, remotetest.Repeat(300), "s"), wire.RelayForbidden, "a unix socket allows",
		},
		"a NUL": {real + "/s\x00", wire.RelayForbidden, "control character"},
		"a base that is a link": {
			filepath.Join(ours, "real", wire.SocketName), wire.RelayForbidden, ours + " is a symbolic link",
		},
		"a build that is a link": {
			filepath.Join(base, "link", wire.SocketName), wire.RelayForbidden, "link is a symbolic link",
		},
		"a build that is a file":  {filepath.Join(base, "flat", "s"), wire.RelayForbidden, "flat is a regular file"},
		"a socket that is a link": {filepath.Join(linked, "s"), wire.RelayForbidden, "it is a symbolic link, not a socket"},
		"a socket that is a file": {filepath.Join(linked, "file"), wire.RelayForbidden, "it is a regular file, not a socket"},
		"a missing build":         {filepath.Join(base, "none", "s"), wire.RelayNotFound, "no such socket"},
		"a missing socket":        {filepath.Join(linked, "none"), wire.RelayNotFound, "no such socket"},
		"a dead one":              {filepath.Join(linked, "dead"), wire.RelayNotFound, "no process listens"},
	} {
		t.Run(name, func(t *testing.T) {
			r.connectReq(t, wire.RelayConnect{Path: test.path}).refused(t, test.code, test.want)
		})
	}
	r.connectReq(t, wire.RelayConnect{Path: "/var/run/docker.sock", Wait: time.Hour}).
		refused(t, wire.RelayForbidden, "connects to")
}

func TestRelayConnectMakesNoBase(t *testing.T) {
	r := startRelay(t)
	r.connectReq(t, wire.RelayConnect{Path: remotetest.SocketIn(t, r.tmp, "b")}).
		refused(t, wire.RelayNotFound, "no such socket")
	require.Empty(t, remotetest.Names(t, r.tmp))
}

func TestRelayRefusesASocketOfAnotherUser(t *testing.T) {
	remotetest.NeedRoot(t)
	r := startSweptRelay(t)
	path := remotetest.SocketIn(t, r.tmp, "b")
	for name, test := range map[string]struct {
		dir, want string
	}{
		"base":  {filepath.Join(r.tmp, wire.SocketBase), "want a directory that belongs to user 65534"},
		"build": {filepath.Dir(path), "belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			ln, _ := listenIn(t, r.tmp, "b")
			defer os.RemoveAll(filepath.Join(r.tmp, wire.SocketBase))
			defer ln.Close()
			require.NoError(t, os.Chown(test.dir, remotetest.Nobody, remotetest.Nobody))
			r.connectReq(t, wire.RelayConnect{Path: path}).refused(t, wire.RelayForbidden, test.want)
		})
	}
	// The directory is ours, but another user listens.
	dir := buildDir(t, r.tmp, "b")
	require.NoError(t, os.Chmod(r.tmp, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o777))
	require.NoError(t, os.Chmod(dir, 0o777))
	listener := remotetest.AsNobody(t, remotetest.Role(t.Context(), "listen", path))
	stdin, err := listener.StdinPipe()
	require.NoError(t, err)
	stdout, err := listener.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, listener.Start())
	_, err = io.ReadFull(stdout, make([]byte, 2))
	require.NoError(t, err)
	r.connectReq(t, wire.RelayConnect{Path: path}).refused(t, wire.RelayForbidden, "neither us")
	require.NoError(t, stdin.Close())
	require.NoError(t, listener.Wait())
}

// marker is a script that says that it listens on $1, and lives until its stdin ends.
const marker = `echo "step-runner is listening on socket $1" >&2; cat`

func TestRelayConnectWaitsForTheProcessThatListens(t *testing.T) {
	r := startRelay(t)
	ln, path := listenIn(t, r.tmp, "b")
	wait := wire.RelayConnect{Path: path, Wait: time.Hour}
	early := r.connectReq(t, wait)
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out) // and so the relay has seen it
	c := r.startReq(t, wire.RelayStart{Argv: []string{"sh", "-c", `read -r x; ` + marker, "sh", path}, Ready: path}).
		granted(t)
	between := r.connectReq(t, wait)
	again := r.startReq(t, wire.RelayStart{Argv: []string{"sh", "-c", "exit 1"}, Ready: path}).granted(t)
	require.Equal(t, byte(1), again.finish(t).exit.Status, "a second one has no say")
	c.send(t, wire.FrameData, "go\n")
	kind, payload := c.next(t)
	require.Equal(t, wire.FrameStderr, kind)
	require.True(t, strings.HasPrefix(string(payload), wire.ReadyLine(path)), "the manager sees it too")
	calls := []*call{early, between, r.connectReq(t, wait)}
	for range calls {
		conn, err := ln.Accept()
		require.NoError(t, err)
		conn.Close()
	}
	for _, call := range calls {
		call.granted(t).expect(t, wire.FrameEnd, "")
		call.ended(t)
	}
	c.send(t, wire.FrameEnd, "")
	c.finish(t)
	r.connectReq(t, wire.RelayConnect{Path: path, Wait: time.Millisecond}).
		refused(t, wire.RelayNotReady, "no process listened")
}

func TestRelayConnectGoesWhereTheProcessSays(t *testing.T) {
	r := startRelay(t)
	uid := strconv.Itoa(os.Geteuid())
	path := filepath.Join(lockedDir(t, filepath.Join(r.tmp, wire.SocketBase+"-"+uid, "b")), wire.SocketName)
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer ln.Close()
	asked := remotetest.SocketIn(t, r.tmp, "b")
	c := r.connectReq(t, wire.RelayConnect{Path: asked, Wait: time.Hour})
	r.startReq(t, wire.RelayStart{Argv: []string{"sh", "-c", marker, "sh", path}, Ready: asked}).granted(t)
	c.granted(t)
	conn, err := ln.Accept()
	require.NoError(t, err)
	conn.Close()

	for name, told := range map[string]string{
		"elsewhere":     "/var/run/docker.sock",
		"another build": remotetest.SocketIn(t, r.tmp, "c"),
		"another user":  filepath.Join(r.tmp, wire.SocketBase+"-12345", "x", wire.SocketName),
	} {
		t.Run(name, func(t *testing.T) {
			asked := remotetest.SocketIn(t, r.tmp, "x")
			c := r.connectReq(t, wire.RelayConnect{Path: asked, Wait: time.Hour})
			p := r.startReq(t, wire.RelayStart{Argv: []string{"sh", "-c", marker, "sh", told}, Ready: asked}).granted(t)
			response, err := wire.ReadRelayResponse(c)
			require.NoError(t, err)
			refusals := []wire.RelayCode{wire.RelayNotReady, wire.RelayForbidden}
			if os.Geteuid() == 0 && name == "another user" { // it may be a build of root's
				refusals = []wire.RelayCode{wire.RelayNotFound}
			}
			require.Contains(t, refusals, response.Code)
			require.Contains(t, response.Text, told)
			c.ended(t)
			p.send(t, wire.FrameEnd, "")
			p.finish(t)
		})
	}
}

func TestRelayConnectSaysWhyTheSocketIsNotReady(t *testing.T) {
	r := startRelay(t)
	for name, start := range map[string]func(t *testing.T, path string){
		"the serve has ended": func(t *testing.T, path string) {
			p := r.startReq(t, wire.RelayStart{Argv: []string{"sh", "-c", "exit 3"}, Ready: path})
			require.Equal(t, byte(3), p.granted(t).finish(t).exit.Status)
		},
		"the serve is being ended": func(t *testing.T, path string) {
			p := r.startReq(t, wire.RelayStart{Argv: []string{"cat"}, Ready: path})
			require.NoError(t, p.granted(t).Close())
		},
		`"no-such-serve": no directory of the PATH`: func(t *testing.T, path string) {
			p := r.startReq(t, wire.RelayStart{Argv: []string{"no-such-serve"}, Ready: path})
			p.refused(t, wire.RelayNotFound, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := remotetest.SocketIn(t, r.tmp, "b")
			said := func() string {
				c := r.connectReq(t, wire.RelayConnect{Path: path, Wait: 100 * time.Millisecond})
				start(t, path)
				response, err := wire.ReadRelayResponse(c)
				require.NoError(t, err)
				require.Equal(t, wire.RelayNotReady, response.Code)
				c.ended(t)
				return response.Text
			}
			text := said()
			for strings.HasPrefix(text, "no process listened") { // the connect was served after the process had ended
				text = said()
			}
			require.Contains(t, text, name)
		})
	}
}

func TestRelayConnectThatWaitsEndsWithItsStream(t *testing.T) {
	r := startRelay(t)
	for range 100 {
		c := r.connectReq(t, wire.RelayConnect{Path: remotetest.SocketIn(t, r.tmp, "b"), Wait: time.Hour})
		require.NoError(t, c.Close())
		_, err := io.Copy(io.Discard, c)
		require.NoError(t, err)
	}
	remotetest.Eventually(t, func() bool { return r.session.NumStreams() == 0 }, "nothing left")
}

func TestReadySocketsForgetAll(t *testing.T) {
	r := newReadySockets()
	closing := make(chan struct{})
	for i := range 100 {
		path := fmt.Sprintf("/tmp/%s/%d/s", wire.SocketBase, i)
		s := r.own(path)
		require.NotNil(t, s)
		require.Nil(t, r.own(path), "one is enough")
		if i%2 == 0 {
			r.listens(s, path)
			told, err := r.await(t.Context(), path, closing)
			require.NoError(t, err)
			require.Equal(t, path, told)
		}
		r.disown(s, "the serve has ended")
		r.disown(s, "the serve has ended")
		r.listens(s, path)
	}
	require.Empty(t, r.paths)
	close(closing)
	_, err := r.await(t.Context(), "/x", closing)
	require.ErrorIs(t, err, errClosing)
	require.Empty(t, r.paths)
}

func TestRelayReachesARealServe(t *testing.T) {
	r := startRelay(t)
	path := remotetest.SocketIn(t, r.tmp, "42")
	c := r.connectReq(t, wire.RelayConnect{Path: path, Wait: time.Hour})
	serve := r.startReq(t, wire.RelayStart{
		Argv: []string{
			os.Args[0],
			path,
		}, Env: []string{remotetest.RoleVar + "=serve", "GORACE=atexit_sleep_ms=0"}, Ready: path,
	}).granted(t)
	c.granted(t)
	// HTTP/2: the server speaks first, with its settings.
	kind, payload := c.next(t)
	require.Equal(t, wire.FrameData, kind)
	require.NotEmpty(t, payload)
	require.NoError(t, serve.Close())
	got := make([]byte, 1<<20)
	n, _ := io.ReadFull(serve, got)
	require.Contains(t, string(got[:n]), wire.ReadyLine(path))
	remotetest.RequireGone(t, filepath.Dir(path))
	remotetest.Eventually(t, func() bool { return len(r.children(t)) == 0 }, "gone")
}

// One byte out of band, of one build, stopped the relay's output for all builds.
func TestBytesOutOfBandStopNobody(t *testing.T) {
	r := startRelay(t)
	c, conn := joinedTo(t, r, "b1")
	other, neighbour := joinedTo(t, r, "b2")
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	sent := 0
	for range 50 {
		n, err := conn.Write(make([]byte, 20_000)) // enough for the relay to move them
		require.NoError(t, err)
		var failed error
		require.NoError(t, raw.Write(func(fd uintptr) bool {
			failed = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil)
			return !errors.Is(failed, unix.EAGAIN)
		}))
		if errors.Is(failed, unix.EOPNOTSUPP) {
			return // this kernel has none
		}
		require.NoError(t, failed)
		sent += n + 1
	}
	for got := 0; got < sent; {
		kind, payload := c.next(t)
		require.Equal(t, wire.FrameData, kind)
		got += len(payload)
	}
	_, err = io.WriteString(neighbour, "hello")
	require.NoError(t, err)
	other.expect(t, wire.FrameData, "hello")
}
