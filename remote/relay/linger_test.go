package relay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// startLingering starts a serve that outlives the relay, and returns it.
func (r *relayed) startLingering(t *testing.T, id string) (serve proc.Info, socket string) {
	t.Helper()
	socket = remotetest.SocketIn(t, r.tmp, id)
	_, serve = r.awaitLingering(t, socket, "linger", wire.ReadyLine(socket))
	return serve, socket
}

// awaitLingering asks for a serve that outlives the relay, by a process of this role, waits until that says what is
// wanted on stderr, and returns the request and the serve.
func (r *relayed) awaitLingering(t *testing.T, socket, role, want string) (c *call, serve proc.Info) {
	t.Helper()
	c = r.startReq(t, wire.RelayStart{
		Argv:  []string{os.Args[0], "steps", "serve", "--socket", socket, "--linger", "1h"},
		Ready: socket, Env: []string{remotetest.RoleVar + "=" + role},
	}).granted(t)
	c.send(t, wire.FrameData, string(wire.NewSecret().Line()))
	for {
		kind, text := c.next(t)
		if kind == wire.FrameStderr {
			require.Equal(t, want, string(text))
			break
		}
	}
	pid, err := socketdir.Listener(t.Context(), socket)
	require.NoError(t, err)
	serve, err = proc.ReadInfo(pid)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return c, serve
}

func TestLingeringServeOutlivesItsRelay(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *relayed){
		"that ends": func(t *testing.T, r *relayed) {
			require.NoError(t, r.stdin.Close())
			r.requireExit(t, 0, "")
		},
		"that is killed": func(t *testing.T, r *relayed) {
			require.NoError(t, r.cmd.Process.Kill())
			<-r.exited
		},
		"that gets SIGTERM": func(t *testing.T, r *relayed) {
			require.NoError(t, r.cmd.Process.Signal(unix.SIGTERM))
			<-r.exited
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t)
			serve, socket := r.startLingering(t, "42")
			other := r.sh(t, "echo $$; exec sleep 1000")
			shell, err := proc.ReadInfo(other.pid(t))
			require.NoError(t, err)
			end(t, r)
			pid, err := socketdir.Listener(t.Context(), socket)
			require.NoError(t, err)
			require.Equal(t, serve.PID, pid)
			require.False(t, serve.Gone())
			remotetest.Eventually(t, shell.Gone, "only the serve is spared")
			require.NoError(t, unix.Kill(serve.PID, unix.SIGTERM))
			remotetest.Eventually(t, serve.Gone, "it ends by a signal")
		})
	}
}

// Symptom: the step runner was killed by the relay's end, and its directory stayed, if it had begun to listen when the
// manager was killed, and the relay read the marker after it had noticed that.
func TestLingeringServeOutlivesARelayThatEndsBeforeTheMarkerIsRead(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *relayed, *call){
		"the relay ends": func(*testing.T, *relayed, *call) {},
		"the manager gives up the start": func(t *testing.T, r *relayed, c *call) {
			require.NoError(t, c.Close())
			remotetest.Eventually(t, func() bool {
				pid, err := socketdir.Listener(t.Context(), remotetest.SocketIn(t, r.tmp, "42"))
				serve, infoErr := proc.ReadInfo(pid)
				return err == nil && infoErr == nil && serve.Parent == r.cmd.Process.Pid
			}, "the relay has ended the process that told of the serve")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t)
			socket := remotetest.SocketIn(t, r.tmp, "42")
			c, serve := r.awaitLingering(t, socket, "linger late", "it listens\n")
			end(t, r, c)
			require.NoError(t, r.stdin.Close())
			r.requireExit(t, 0, "")
			pid, err := socketdir.Listener(t.Context(), socket)
			require.NoError(t, err)
			require.Equal(t, serve.PID, pid)
			require.NoError(t, unix.Kill(pid, unix.SIGTERM))
			remotetest.Eventually(t, serve.Gone, "it ends by a signal")
			remotetest.RequireGone(t, filepath.Dir(socket))
		})
	}
}

func TestRelayAdoptsAndReapsTheLingeringServe(t *testing.T) {
	r := startRelay(t)
	serve, _ := r.startLingering(t, "42")
	remotetest.Eventually(t, func() bool {
		now, err := proc.ReadInfo(serve.PID)
		return err == nil && now.Parent == r.cmd.Process.Pid
	}, "adopted")
	require.NoError(t, unix.Kill(serve.PID, unix.SIGTERM))
	remotetest.Eventually(t, func() bool {
		_, err := proc.ReadInfo(serve.PID)
		return err != nil
	}, "reaped")
	require.NoError(t, r.stdin.Close())
	r.requireExit(t, 0, "")
}
