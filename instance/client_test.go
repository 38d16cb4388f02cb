package instance_test

import (
	"bytes"
	"context"
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
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// runnerClient is GitLab Runner's interface of an environment's client, executors.Client.
type runnerClient interface {
	Dial(network, addr string) (net.Conn, error)
	DialRun(ctx context.Context, command string) (net.Conn, error)
	Run(ctx context.Context, options instance.RunOptions) error
	Close() error
}

var _ runnerClient = (*instance.Client)(nil)

// client returns a build's client and the build, whose log is out.
func client(t testing.TB, p *instance.Provider, out io.Writer) (*instance.Client, *instance.Executor) {
	t.Helper()
	e := p.Executor(instance.Build{ID: "b1", Log: out})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	c, err := e.Client(sshtest.Within(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Cleanup(context.Background())) })
	return c, e
}

// quick shortens the grace.
func quick(cfg *instance.Config, _ *instance.Instance) { cfg.Grace = 2 * time.Second }

//stepmux:acceptance client | `Run` runs a command, with its output and exit code
//stepmux:with instance.TestClientWhoseOutputFailsStopsTheCommand
func TestClientRunsCommands(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		c, _ := client(t, v.provider(t, 1, nil), nil)
		big := bytes.Repeat([]byte("stdin\x00\xff\n"), 1<<20)
		for _, test := range []struct {
			command string
			stdin   io.Reader
			out     string
			code    int
		}{
			{"echo hi; echo there >&2", nil, "hi\nthere\n", 0},
			{"cat", strings.NewReader("echo not run\n"), "echo not run\n", 0},
			{"cat", nil, "", 0},
			{"bash", strings.NewReader("echo from bash; exit 7\n"), "from bash\n", 7},
			{"cat", bytes.NewReader(big), string(big), 0},
			{"true", bytes.NewReader(big), "", 0}, // never read
			{"kill -KILL $$", nil, "", 137},
			{"exit 3", nil, "", 3},
			{"exit 127", nil, "", 127},
			{"nosuchprogram 2>/dev/null", nil, "", 127},
			{`printf '%s' "a  b" 'c'"'"`, nil, "a  bc'", 0},
			{"(sleep 0.1; echo late) & echo early; wait", nil, "early\nlate\n", 0},
		} {
			var stdout, stderr sshtest.Log
			err := c.Run(sshtest.Within(t), instance.RunOptions{
				Command: test.command, Stdin: test.stdin, Stdout: &stdout, Stderr: &stderr,
			})
			if test.code == 0 {
				require.NoError(t, err, test.command)
			} else {
				requireReason(t, err, instance.ScriptFailure, test.code)
			}
			require.True(t, test.out == stdout.String()+stderr.String(),
				"%s: %d bytes, %.200q", test.command, len(stdout.String()), stderr.String())
		}
		requireReason(t, c.Run(sshtest.Within(t), instance.RunOptions{}), instance.RunnerSystemFailure, 0)
		require.Equal(t, 1, v.TotalConns())
	})
}

// silent is a stdin on which nothing ever comes.
type silent struct{ until <-chan struct{} }

func (s silent) Read([]byte) (int, error) { <-s.until; return 0, io.EOF }

//stepmux:acceptance client | Cancellation ends the process group, with its grace
func TestCancelledRunEndsTheCommandsProcessGroup(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		c, _ := client(t, v.provider(t, 1, quick), nil)
		for name, stdin := range map[string]io.Reader{
			"no stdin":                nil,
			"a stdin that is silent":  silent{t.Context().Done()},
			"a stdin nobody reads":    bytes.NewReader(make([]byte, 8<<20)),
			"a stdin that is at hand": strings.NewReader("x"),
		} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				out := &sshtest.Log{}
				ended := make(chan error, 1)
				command := "cd " + v.tmp + `; trap "echo cleaning up" TERM; ` +
					`sh -c 'trap "" TERM; while :; do sleep 600; done' <&- & echo started; wait; wait`
				go func() {
					ended <- c.Run(ctx, instance.RunOptions{Command: command, Stdin: stdin, Stdout: out, Stderr: out})
				}()
				out.Await(t, "started")
				because := errors.New("enough")
				cancel(because)
				err := <-ended
				requireReason(t, err, instance.JobCanceled, 0)
				require.ErrorIs(t, err, because)
				if stdin == nil {
					require.Contains(t, out.String(), "cleaning up")
				}
				v.requireClean(t)
			})
		}
	})
}

//stepmux:acceptance client | `DialRun` gives a connection whose close ends the command, and keeps its exit status
//stepmux:with instance.TestDialedCommandTellsItsExitStatus, instance.TestConnectionsKeepDeadlines
func TestClosingADialedCommandEndsIt(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		log := &sshtest.Log{}
		c, _ := client(t, v.provider(t, 1, quick), log)
		conn, err := c.DialRun(sshtest.Within(t), "cd "+v.tmp+"; echo to the log >&2; sleep 600 & cat; echo never >&2; wait")
		require.NoError(t, err)
		log.Await(t, "to the log")
		for _, text := range []string{"ping", strings.Repeat("pong", 1<<18)} {
			go func() { _, _ = conn.Write([]byte(text)) }()
			got := make([]byte, len(text))
			_, err := io.ReadFull(conn, got)
			require.NoError(t, err)
			require.True(t, text == string(got))
		}
		require.Equal(t, "exec", conn.RemoteAddr().Network())
		require.Equal(t, "vm-1", conn.LocalAddr().String())
		require.NoError(t, conn.Close())
		require.NoError(t, conn.Close())
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = conn.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		v.requireClean(t)
	})
}

func TestDialedCommandTellsItsExitStatus(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		c, _ := client(t, v.provider(t, 1, quick), nil)
		for command, code := range map[string]int{"exit 42": 42, "echo bye": 0, "kill -TERM $$": 143} {
			var stderr sshtest.Log
			conn, err := c.DialCommand(sshtest.Within(t), command, &stderr)
			require.NoError(t, err)
			_, err = io.ReadAll(conn)
			require.NoError(t, err, "the end of the output is a clean one")
			for range 2 {
				err := conn.Wait(sshtest.Within(t))
				if code == 0 {
					require.NoError(t, err)
				} else {
					requireReason(t, err, instance.ScriptFailure, code)
				}
			}
			require.NoError(t, conn.Close())
		}
		conn, err := c.DialCommand(sshtest.Within(t), "sleep 600", nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorIs(t, conn.Wait(ctx), context.DeadlineExceeded)
		require.NoError(t, conn.Close())
	})
}

func TestConnectionsKeepDeadlines(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	c, _ := client(t, v.provider(t, 1, quick), nil)
	socket := filepath.Join(v.tmp, "s")
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			accepted <- nc
		}
	}()
	dialed, err := c.Dial("unix", socket)
	require.NoError(t, err)
	server := <-accepted
	defer server.Close()
	command, err := c.DialRun(sshtest.Within(t), "read x; echo $x; sleep 600")
	require.NoError(t, err)
	for name, conn := range map[string]net.Conn{"dialed": dialed, "command": command} {
		t.Run(name, func(t *testing.T) {
			one := make([]byte, 1)
			require.NoError(t, conn.SetDeadline(time.Unix(1, 0)))
			_, err := conn.Read(one)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			timeout := net.Error(nil)
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout())
			_, err = conn.Write(one)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)

			// A deadline that is set while a Read waits; later bytes are not lost.
			require.NoError(t, conn.SetDeadline(time.Time{}))
			failed := make(chan error)
			go func() { _, err := conn.Read(make([]byte, 1)); failed <- err }()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
			require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(sshtest.Bound)))
			_, err = conn.Write([]byte("hi\n"))
			require.NoError(t, err)
			if name == "dialed" {
				echo := make([]byte, 3)
				_, err := io.ReadFull(server, echo)
				require.NoError(t, err)
				_, _ = server.Write(echo)
			}
			got := make([]byte, 3)
			_, err = io.ReadFull(conn, got)
			require.NoError(t, err)
			require.Equal(t, "hi\n", string(got))

			// The other end does not read.
			require.NoError(t, conn.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			for err == nil {
				_, err = conn.Write(make([]byte, 1<<20))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, conn.Close())
			require.ErrorIs(t, conn.SetDeadline(time.Time{}), net.ErrClosed)
		})
	}
}

//stepmux:acceptance client | `Dial` reaches what the instance can reach
func TestClientDialsFromTheInstance(t *testing.T) {
	for _, s := range servers[:2] {
		t.Run(s.name, func(t *testing.T) {
			v := newVM(t, s.start(t))
			c, _ := client(t, v.provider(t, 1, nil), nil)
			for network, addr := range map[string]string{"unix": filepath.Join(v.tmp, "s"), "tcp": "127.0.0.1:0"} {
				ln, err := net.Listen(network, addr)
				require.NoError(t, err)
				defer ln.Close()
				go func() {
					nc, err := ln.Accept()
					if err != nil {
						return
					}
					defer nc.Close()
					text, _ := io.ReadAll(nc)
					_, _ = nc.Write(bytes.ToUpper(text))
				}()
				conn, err := c.Dial(network, ln.Addr().String())
				require.NoError(t, err)
				_, err = conn.Write([]byte("hello"))
				require.NoError(t, err)
				require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
				got, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.Equal(t, "HELLO", string(got))
				require.Equal(t, network, conn.RemoteAddr().Network())
				require.NoError(t, conn.Close())
			}
			_, err := c.Dial("unix", "/none")
			requireReason(t, err, instance.RunnerSystemFailure, 0)
			require.ErrorContains(t, err, "AllowStreamLocalForwarding")
			_, err = c.Dial("udp", "127.0.0.1:1")
			requireReason(t, err, instance.RunnerSystemFailure, 0)
		})
	}
}

//stepmux:acceptance client | `Close` ends what the client started, and never the connection that all share
//stepmux:with instance.TestCleanupClosesTheBuildsClients
func TestCloseOfAClientEndsWhatItStartedAndNotTheConnection(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 2, quick)
		out := &sshtest.Log{}
		c, e := client(t, p, out)
		other := p.Executor(instance.Build{ID: "b2"})
		require.NoError(t, other.Prepare(sshtest.Within(t)))
		conn, err := c.DialRun(sshtest.Within(t), "cd "+v.tmp+"; echo one started >&2; exec sleep 600")
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			ended <- c.Run(t.Context(), instance.RunOptions{
				Command: "cd " + v.tmp + "; echo two started; exec sleep 600", Stdout: out,
			})
		}()
		out.Await(t, "one started")
		out.Await(t, "two started")
		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
		err = <-ended
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		v.requireClean(t)

		requireReason(t, c.Run(t.Context(), instance.RunOptions{Command: "true"}), instance.RunnerSystemFailure, 0)
		_, err = c.DialRun(t.Context(), "true")
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Dial("unix", "/none")
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, other.Run(sshtest.Within(t), []byte("true")), "the connection is there for the others")
		require.NoError(t, e.Run(sshtest.Within(t), []byte("true")), "and for the build itself")
		require.NoError(t, other.Cleanup(sshtest.Within(t)))
		require.Equal(t, 1, v.TotalConns())
	})
}

func TestCleanupClosesTheBuildsClients(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	out := &sshtest.Log{}
	c, e := client(t, v.provider(t, 1, quick), out)
	conn, err := c.DialRun(sshtest.Within(t), "cd "+v.tmp+"; echo started >&2; exec sleep 600")
	require.NoError(t, err)
	out.Await(t, "started")
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = e.Client(sshtest.Within(t))
	require.ErrorIs(t, err, instance.ErrCleanedUp)
	v.requireClean(t)
}

func TestClientOfALostConnectionSaysSo(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	proxy := sshtest.Proxy(t, v.Addr)
	out := &sshtest.Log{}
	c, _ := client(t, v.via(t, proxy.Addr()).provider(t, 1, quick), out)
	conn, err := c.DialRun(sshtest.Within(t), "cd "+v.tmp+"; echo one started >&2; exec sleep 600")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(t.Context(), instance.RunOptions{
			Command: "cd " + v.tmp + "; echo two started; exec sleep 600", Stdout: out,
		})
	}()
	out.Await(t, "one started")
	out.Await(t, "two started")
	proxy.Cut()
	requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF, "a lost connection is no end")
	requireReason(t, conn.(*instance.CommandConn).Wait(sshtest.Within(t)), instance.RunnerSystemFailure, 0)
	v.requireClean(t)
}

func TestClientWhoseOutputFailsStopsTheCommand(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	c, _ := client(t, v.provider(t, 1, quick), nil)
	for _, options := range []instance.RunOptions{
		{Command: "echo x; exec sleep 600", Stdout: brokenLog{}},
		{Command: "echo x >&2; exec sleep 600", Stderr: brokenLog{}},
		{Command: "exec sleep 600", Stdin: io.MultiReader(strings.NewReader("x"), brokenStdin{})},
	} {
		err := c.Run(sshtest.Within(t), options)
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorContains(t, err, "no space left")
	}
}

type brokenStdin struct{}

func (brokenStdin) Read([]byte) (int, error) { return 0, fmt.Errorf("no space left to read from") }

func TestOnlyLinuxInstancesRunAnything(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	c, e := client(t, v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.OS = "windows" }), nil)
	_, err := e.Connect(sshtest.Within(t))
	require.ErrorContains(t, err, "vm-1 runs windows")
	require.ErrorContains(t, e.Run(sshtest.Within(t), []byte("true")), "vm-1 runs windows")
	require.ErrorContains(t, c.Run(sshtest.Within(t), instance.RunOptions{Command: "true"}), "vm-1 runs windows")
}
