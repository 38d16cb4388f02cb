package remote

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// lingering is a serve that outlived the process which a manager started.
type lingering struct {
	socket string
	secret wire.Secret
	serve  proc.Info
}

// startLingering starts a serve that lingers for so long, and requires that the process which the manager started ends
// when it listens.
func startLingering(t *testing.T, socket string, linger time.Duration) *lingering {
	t.Helper()
	l := &lingering{socket: socket, secret: wire.NewSecret()}
	l.start(t, linger)
	l.serve = l.listener(t)
	t.Cleanup(func() { _ = unix.Kill(l.serve.PID, unix.SIGKILL) })
	return l
}

// start starts serve once more.
func (l *lingering) start(t *testing.T, linger time.Duration) {
	t.Helper()
	near, far, err := os.Pipe()
	require.NoError(t, err)
	defer far.Close()
	stderr := remotetest.NewOutput()
	cmd := remotetest.Role(context.Background(), "linger", "steps", "serve", "--socket", l.socket, linger.String())
	cmd.Stdin, cmd.Stderr = near, stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	near.Close()
	_, err = far.Write(l.secret.Line())
	require.NoError(t, err)
	_, err = io.ReadAll(out)
	require.NoError(t, err, "the serve that goes on must not hold the files of its session")
	require.NoError(t, cmd.Wait(), "%s", stderr)
	require.Equal(t, wire.ReadyLine(l.socket), stderr.String())
}

func (l *lingering) listener(t *testing.T) proc.Info {
	t.Helper()
	pid, err := socketdir.Listener(t.Context(), l.socket)
	require.NoError(t, err)
	info, err := proc.ReadInfo(pid)
	require.NoError(t, err)
	return info
}

// as returns a context whose calls are those of a manager.
func (l *lingering) as(t *testing.T, manager string) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx := with(t, l.secret.Authorization())
	return context.WithCancel(metadata.AppendToOutgoingContext(ctx, wire.ManagerKey, manager))
}

// attach attaches a manager until the function is called.
func (l *lingering) attach(
	t *testing.T, client *grpc.ClientConn, manager string,
) (grpc.ServerStreamingClient[pb.AttachResponse], context.CancelFunc) {
	t.Helper()
	ctx, cancel := l.as(t, manager)
	stream, err := pb.NewAttachmentClient(client).Attach(ctx, &pb.AttachRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	return stream, cancel
}

// requireGone waits until serve has ended and requires that it left nothing.
func (l *lingering) requireGone(t *testing.T) {
	t.Helper()
	remotetest.Eventually(t, l.serve.Gone, "serve ends")
	remotetest.RequireGone(t, filepath.Dir(l.socket))
}

// run starts a job that waits for ever, and returns the process id of its shell.
func (l *lingering) run(t *testing.T, client *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := l.as(t, "m1")
	defer cancel()
	rpc := pb.NewStepRunnerClient(client)
	request := &pb.RunRequest{Id: "job", Type: pb.RunRequest_script, CiScript: "echo begun; exec sleep 1000"}
	_, err := rpc.Run(ctx, request)
	require.NoError(t, err)
	follow, err := rpc.FollowIO(ctx, &pb.FollowIORequest{Id: "job"})
	require.NoError(t, err)
	msg, err := follow.Recv()
	require.NoError(t, err)
	require.Equal(t, "begun\n", string(msg.GetStream()))
}

func TestLingeringServeWaitsForItsManagerAndThenEndsWithAllOfItsJobs(t *testing.T) {
	const linger = 8 * time.Second // a busy machine takes a part of it until a manager attaches
	l := startLingering(t, remotetest.SocketIn(t, remotetest.ShortTemp(t), "42"), linger)
	client := connTo(t, l.socket)
	stream, leave := l.attach(t, client, "m1")
	l.run(t, client)
	for range 2 { // it was away, and comes back
		leave()
		_, err := stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		stream, leave = l.attach(t, client, "m1")
	}
	ctx, cancel := l.as(t, "m1")
	jobs, err := pb.NewStepRunnerClient(client).List(ctx, &pb.ListRequest{})
	cancel()
	require.NoError(t, err)
	require.Len(t, jobs.GetJobs(), 1)
	require.Equal(t, pb.JobState_running, jobs.GetJobs()[0].GetStatus())
	left := time.Now()
	leave()
	l.requireGone(t)
	require.GreaterOrEqual(t, time.Since(left), linger)
}

// A disk that becomes full while no manager is attached fails the job, and the manager that comes back learns why.
//
//stepmux:reliability promises | If the disk becomes full while no manager is attached, the job that needs space fails,
//stepmux:more and the next manager learns of it
func TestAFullDiskWithoutAnAttachedManagerFailsOnlyTheJobThatMeetsIt(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	if err := unix.Mount("tmpfs", tmp, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(tmp, unix.MNT_DETACH)) })
	l := startLingering(t, remotetest.SocketIn(t, tmp, "42"), time.Minute)
	client := connTo(t, l.socket)
	stream, leave := l.attach(t, client, "m1")
	ctx, cancel := l.as(t, "m1")
	defer cancel()
	rpc := pb.NewStepRunnerClient(client)
	_, err := rpc.Run(ctx, &pb.RunRequest{
		Id: "job", Type: pb.RunRequest_script, CiScript: "until [ -e begin ]; do sleep 0.01; done; head -c 1M /dev/zero",
	})
	require.NoError(t, err)
	var work []string
	remotetest.Eventually(t, func() bool {
		work, _ = filepath.Glob(filepath.Join(filepath.Dir(l.socket), "jobs", "*", "work"))
		return len(work) == 1
	}, "the job's directory")
	leave()
	_, err = stream.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	require.NoError(t, os.WriteFile(filepath.Join(work[0], "begin"), nil, 0o600))
	var last *pb.JobState
	remotetest.Eventually(t, func() bool {
		jobs, err := rpc.List(ctx, &pb.ListRequest{}) // this attaches nobody
		require.NoError(t, err)
		last = jobs.GetJobs()[0]
		return last.GetStatus() != pb.JobState_running
	}, "the job ends")
	l.attach(t, client, "m1")
	require.Equal(t, pb.JobState_failed, last.GetStatus())
	require.True(t, last.GetSystemFailed())
	require.Contains(t, last.GetMessage(), "no space left")
	require.Less(t, last.GetStdoutLen(), int64(1<<20))
	_, err = pb.NewAttachmentClient(client).End(ctx, &pb.EndRequest{})
	require.NoError(t, err)
	l.requireGone(t)
}

func TestSecondStartOfALingeringServeFindsTheFirst(t *testing.T) {
	l := startLingering(t, remotetest.SocketIn(t, remotetest.ShortTemp(t), "42"), time.Minute)
	l.start(t, time.Minute)
	require.Equal(t, l.serve, l.listener(t))
	stranger := &lingering{socket: l.socket, secret: wire.NewSecret()}
	stranger.start(t, time.Minute)
	ctx, cancel := stranger.as(t, "m1")
	defer cancel()
	stream, err := pb.NewAttachmentClient(connTo(t, l.socket)).Attach(ctx, &pb.AttachRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unauthenticated, status.Code(err), "the secret of another build")
}

func TestManagerEndsALingeringServe(t *testing.T) {
	l := startLingering(t, remotetest.SocketIn(t, remotetest.ShortTemp(t), "42"), time.Hour)
	client := connTo(t, l.socket)
	stream, _ := l.attach(t, client, "m1")
	l.run(t, client)
	ctx, cancel := l.as(t, "m1")
	defer cancel()
	_, err := pb.NewAttachmentClient(client).End(ctx, &pb.EndRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	l.requireGone(t)
}

func TestLaterManagerWinsAndTheEarlierIsTold(t *testing.T) {
	l := startLingering(t, remotetest.SocketIn(t, remotetest.ShortTemp(t), "42"), time.Hour)
	client := connTo(t, l.socket)
	first, _ := l.attach(t, client, "m1")
	second, _ := l.attach(t, client, "m2")
	_, err := first.Recv()
	require.Equal(t, codes.Aborted, status.Code(err))
	require.ErrorContains(t, err, "another manager has attached")
	ctx, cancel := l.as(t, "m1")
	defer cancel()
	_, err = pb.NewAttachmentClient(client).End(ctx, &pb.EndRequest{})
	require.Equal(t, codes.Aborted, status.Code(err), "the earlier one must not end the build of the later")
	again, err := pb.NewAttachmentClient(client).Attach(ctx, &pb.AttachRequest{})
	require.NoError(t, err)
	_, err = again.Recv()
	require.Equal(t, codes.Aborted, status.Code(err))
	_, err = pb.NewStepRunnerClient(client).Cancel(ctx, &pb.CancelRequest{Id: "job"})
	require.Equal(t, codes.Aborted, status.Code(err))
	require.NoError(t, second.Context().Err())
	require.NotEqual(t, codes.Aborted, status.Code(func() error {
		ctx, cancel := l.as(t, "m2")
		defer cancel()
		_, err := pb.NewAttachmentClient(client).End(ctx, &pb.EndRequest{})
		return err
	}()))
	l.requireGone(t)
}

func TestEndCommandEndsALingeringServe(t *testing.T) {
	l := startLingering(t, remotetest.SocketIn(t, remotetest.ShortTemp(t), "42"), time.Hour)
	left, err := os.CreateTemp(t.TempDir(), "left")
	require.NoError(t, err)
	defer left.Close()
	require.NoError(t, End(t.Context(), left, l.socket))
	text, err := os.ReadFile(left.Name())
	require.NoError(t, err)
	require.Equal(t, "[]\n", string(text))
	l.requireGone(t)
}

func TestServeRefusesAnImpossibleLinger(t *testing.T) {
	build := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	for _, test := range []struct {
		cfg  ServeConfig
		want string
	}{
		{ServeConfig{Socket: build, SecretOnStdin: true, Options: vmconfig.Options{Linger: -1}}, "cannot linger for -1ns"},
		{
			ServeConfig{Socket: build, SecretOnStdin: true, Options: vmconfig.Options{Linger: 365 * 24 * time.Hour}},
			"0 to 24h0m0s",
		},
		{ServeConfig{Socket: build, Options: vmconfig.Options{Linger: time.Hour}}, "needs a secret"},
		{ServeConfig{Socket: "/x/y", SecretOnStdin: true, Options: vmconfig.Options{Linger: time.Hour}}, "socket of a build"},
		{
			ServeConfig{
				Socket: SocketOnStdin, SecretOnStdin: true, Options: vmconfig.Options{Linger: time.Hour}, Detach: []string{"x"},
			},
			"socket of a build",
		},
	} {
		err := Serve(t.Context(), Stdio{Err: io.Discard}, test.cfg)
		require.ErrorContains(t, err, test.want)
	}
	remotetest.RequireGone(t, filepath.Dir(build))
}

func TestLingeringServeWithoutASecretSaysWhyItEnds(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	stderr := remotetest.NewOutput()
	cmd := remotetest.Role(context.Background(), "linger", "steps", "serve", "--socket", socket, "1h")
	cmd.Stderr = stderr
	near, far, err := os.Pipe()
	require.NoError(t, err)
	defer near.Close()
	require.NoError(t, far.Close())
	cmd.Stdin = near
	require.Error(t, cmd.Run())
	require.Contains(t, stderr.String(), "stdin ended before the secret came")
	require.Contains(t, stderr.String(), "ended before it listened: exit status 1")
	remotetest.RequireGone(t, filepath.Dir(socket))
}
