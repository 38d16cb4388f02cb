package relay

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
)

// served is a build of a relay that runs as an ordinary user.
type served struct {
	*call
	*relayed
	socket string
	pid    int // of its serve
	client pb.StepRunnerClient
	conn   *grpc.ClientConn
}

// serve starts a build and waits until its serve listens.
func (r *relayed) serve(t *testing.T, id string) *served {
	t.Helper()
	b := &served{relayed: r, socket: remotetest.SocketIn(t, r.tmp, id)}
	option, secret := "--quiet", wire.NewSecret()
	if r.linger {
		option = "--linger"
	}
	b.call = r.startReq(t, wire.RelayStart{
		Argv: []string{r.cmd.Path, "steps", "serve", "--socket", b.socket, option}, Ready: b.socket,
	}).granted(t)
	if r.linger {
		b.send(t, wire.FrameData, string(secret.Line()))
	}
	kind, text := b.next(t)
	require.Equal(t, wire.FrameStderr, kind)
	require.Contains(t, string(text), wire.ReadyLine(b.socket))
	b.pid = listener(t, b.socket)
	var err error
	b.conn, err = grpc.NewClient("unix:"+b.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(secret.Authorization())))
	require.NoError(t, err)
	t.Cleanup(func() { b.conn.Close() })
	b.client = pb.NewStepRunnerClient(b.conn)
	return b
}

// bearer is a secret that a client sends with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{wire.AuthorizationKey: string(b), wire.ManagerKey: "m1"}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// listener returns the process that listens on a socket, which may be another user's.
func listener(t *testing.T, socket string) int {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	require.NoError(t, err)
	var peer *unix.Ucred
	require.NoError(t, raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}))
	require.NoError(t, err)
	return int(peer.Pid)
}

// run runs a script to its end. It skips the test without isolation.
func (b *served) run(t *testing.T, script string) {
	t.Helper()
	_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "job", Job: &pb.Job{Script: script}})
	require.NoError(t, err)
	stream, err := b.client.Follow(t.Context(), &pb.FollowRequest{Id: "job"})
	require.NoError(t, err)
	for {
		m, err := stream.Recv()
		require.NoError(t, err)
		if state := m.GetJob(); state != nil {
			if strings.Contains(state.GetMessage(), "is not available") {
				t.Skip("part missing: namespaces: ", state.GetMessage())
			}
			return
		}
	}
}

// end ends a build as a manager does, and requires that its serve seems to have ended.
func (b *served) end(t *testing.T) {
	t.Helper()
	if b.linger {
		b.endLease(t)
	}
	require.NoError(t, b.conn.Close())
	b.send(t, wire.FrameEnd, "")
	require.Equal(t, wire.RelayExit{}, b.finish(t).exit)
	remotetest.RequireGone(t, filepath.Dir(b.socket))
}

// endLease ends a serve that lingers, but for what a closed connection ends.
func (b *served) endLease(t *testing.T) {
	t.Helper()
	_, err := pb.NewAttachmentClient(b.conn).End(t.Context(), &pb.EndRequest{})
	require.NoError(t, err)
}

// serves returns the relay's children that are serves and run.
func (r *relayed) serves(t *testing.T) (pids []int) {
	t.Helper()
	all, err := proc.List()
	require.NoError(t, err)
	for _, p := range all {
		if p.Parent == r.cmd.Process.Pid && !p.Ended && slices.Contains(proc.Arguments(p.PID), "serve") {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// endOne runs a build to its end, and returns its serve, which waits for another build. A slow machine may take several
// tries: a serve whose end takes long is not kept.
func (r *relayed) endOne(t *testing.T) (serve proc.Info) {
	t.Helper()
	for i := range 20 {
		b := r.serve(t, fmt.Sprint("try", i))
		b.run(t, "exit 1")
		b.end(t)
		if serve, err := proc.ReadInfo(b.pid); err == nil && !serve.Ended {
			return serve
		}
	}
	require.FailNow(t, "no serve is kept")
	return serve
}

func TestAServeThatHasEndedItsBuildTakesTheNextOne(t *testing.T) {
	r := startOrdinaryRelay(t)
	first := r.endOne(t)
	second := r.serve(t, "b2")
	require.Equal(t, first.PID, second.pid)
	second.run(t, "true")
	other := r.serve(t, "b3")
	require.NotEqual(t, second.pid, other.pid, "at a time a serve has one build")
	other.run(t, "true")
	second.end(t)
	other.end(t)
	require.NoError(t, r.stdin.Close())
	r.requireExit(t, 0, "")
	require.Empty(t, remotetest.Names(t, filepath.Join(r.tmp, wire.SocketBase)))
}

// Symptom: a manager, whose builds linger, ran 0.59 times as many short builds a second as `stepmux run`.
func TestAServeThatLingersTakesTheNextBuildAndOutlivesItsRelayInIt(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *relayed){
		"that ends":      func(t *testing.T, r *relayed) { require.NoError(t, r.stdin.Close()) },
		"that is killed": func(t *testing.T, r *relayed) { require.NoError(t, r.cmd.Process.Kill()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := startOrdinaryRelay(t)
			r.linger = true
			first := r.endOne(t)
			second := r.serve(t, "b2")
			require.Equal(t, first.PID, second.pid)
			end(t, r)
			<-r.exited
			second.run(t, "true")
			second.endLease(t)
			remotetest.Eventually(t, first.Gone, "no relay has another build")
			require.Empty(t, remotetest.Names(t, filepath.Join(r.tmp, wire.SocketBase)))
		})
	}
}

func TestAfterManyBuildsOneServeIsKept(t *testing.T) {
	r := startOrdinaryRelay(t)
	var builds []*served
	for i := range maxKept + 4 {
		b := r.serve(t, fmt.Sprint("b", i))
		b.run(t, "true")
		builds = append(builds, b)
	}
	require.GreaterOrEqual(t, len(r.serves(t)), len(builds))
	var ends sync.WaitGroup
	for _, b := range builds {
		ends.Go(func() { b.end(t) })
	}
	ends.Wait()
	remotetest.Eventually(t, func() bool { return len(r.serves(t)) <= maxKept+1 }, "a few are kept")
	remotetest.Eventually(t, func() bool { return len(r.serves(t)) == 1 }, "one is kept")
	last := r.serve(t, "last")
	require.Contains(t, r.serves(t), last.pid)
	last.run(t, "true")
	last.end(t)
}

func TestAServeThatIsKilledInItsSecondBuildTakesOnlyThatAlong(t *testing.T) {
	r := startOrdinaryRelay(t)
	first := r.endOne(t)
	victim, neighbour := r.serve(t, "b2"), r.serve(t, "b3")
	require.Equal(t, first.PID, victim.pid)
	for _, b := range []*served{victim, neighbour} {
		_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "job", Job: &pb.Job{Script: "sleep 1000"}})
		require.NoError(t, err)
		stream, err := b.client.Follow(t.Context(), &pb.FollowRequest{Id: "job"})
		require.NoError(t, err)
		_, err = stream.Recv() // a step runs
		require.NoError(t, err)
	}
	require.NoError(t, unix.Kill(victim.pid, unix.SIGKILL))
	require.Equal(t, "KILL", victim.finish(t).exit.Signal)
	remotetest.Eventually(t, func() bool {
		_, err := os.Lstat(filepath.Dir(victim.socket))
		return os.IsNotExist(err)
	}, "its directory is removed")
	list, err := neighbour.client.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.JobState_running, list.GetJobs()[0].GetStatus())
	neighbour.end(t)
}

func TestAServeThatWaitsEndsWithItsRelay(t *testing.T) {
	closeLeash := func(t *testing.T, r *relayed, _ int) { require.NoError(t, r.stdin.Close()) }
	kill := func(t *testing.T, r *relayed, _ int) { require.NoError(t, r.cmd.Process.Kill()) }
	for _, tt := range []struct {
		name   string
		linger bool
		end    func(t *testing.T, r *relayed, serve int)
	}{
		{"that ends", false, closeLeash},
		{"that gets SIGTERM", false, func(t *testing.T, r *relayed, _ int) {
			require.NoError(t, r.cmd.Process.Signal(unix.SIGTERM))
		}},
		{"that is killed", false, kill},
		{"that ends, after it lingered", true, closeLeash},
		{"that is killed, after it lingered", true, kill},
		{"that ends, while it is stopped", true, func(t *testing.T, r *relayed, serve int) {
			require.NoError(t, unix.Kill(serve, unix.SIGSTOP))
			closeLeash(t, r, serve)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := startOrdinaryRelay(t)
			r.linger = tt.linger
			serve := r.endOne(t)
			tt.end(t, r, serve.PID)
			<-r.exited
			remotetest.Eventually(t, serve.Gone, "it ends")
		})
	}
}

func TestAServeThatWaitsAndWasTouchedGetsNoBuild(t *testing.T) {
	for name, touch := range map[string]func(t *testing.T, pid int){
		"killed": func(t *testing.T, pid int) {
			serve, err := proc.ReadInfo(pid)
			require.NoError(t, err)
			require.NoError(t, unix.Kill(pid, unix.SIGKILL))
			remotetest.Eventually(t, serve.Gone, "until then it may take a build")
		},
		"stopped": func(t *testing.T, pid int) {
			require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
			remotetest.Eventually(t, func() bool {
				info, err := proc.ReadInfo(pid)
				return err == nil && info.Stopped
			}, "stopped")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startOrdinaryRelay(t)
			serve := r.endOne(t)
			touch(t, serve.PID)
			next := r.serve(t, "b2")
			require.NotEqual(t, serve.PID, next.pid)
			remotetest.Eventually(t, serve.Gone, "it has ended")
			next.run(t, "true")
			next.end(t)
		})
	}
}
