package service

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

// patience is a grace that no test uses up.
const patience = 3 * time.Minute

// succeeded has the published spelling on the wire.
const succeeded = pb.JobState_suceeded //nolint:misspell // see above

// harness is the service on a real socket, with a client.
type harness struct {
	pb.StepRunnerClient
	manager runnerproto.StepRunnerClient // the other service on the same connection

	t      testing.TB
	store  *job.Store
	socket string
}

// newHarness serves until the end of the test, which nothing of the service outlives.
func newHarness(t testing.TB, change ...func(*job.Config)) *harness {
	t.Helper()
	cfg := job.Config{Dir: t.TempDir(), WorkBase: t.TempDir()}
	for _, c := range change {
		c(&cfg)
	}
	store, err := job.New(cfg)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "sm") //nolint:usetesting // that of t.TempDir is too long for a socket
	require.NoError(t, err)
	h := &harness{t: t, store: store, socket: filepath.Join(dir, "s")}
	ln, err := net.Listen("unix", h.socket)
	require.NoError(t, err)
	server := NewServer(store)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(ln) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
		require.NoError(t, store.Close())
		require.NoError(t, os.RemoveAll(dir))
	})
	conn := h.dial()
	t.Cleanup(func() { conn.Close() })
	h.StepRunnerClient, h.manager = pb.NewStepRunnerClient(conn), runnerproto.NewStepRunnerClient(conn)
	return h
}

// dial returns a connection of its own. The caller closes it.
func (h *harness) dial() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("unix:"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	require.NoError(h.t, err)
	return conn
}

// yaml is a request for the steps in text.
func yaml(id, text string) *pb.RunRequest {
	return &pb.RunRequest{Id: id, Job: &pb.Job{Steps: []byte(text), Grace: durationpb.New(patience)}}
}

// script is a request for the script text.
func script(id, text string) *pb.RunRequest {
	return &pb.RunRequest{Id: id, Job: &pb.Job{Script: text, Grace: durationpb.New(patience)}}
}

// run starts a job.
func (h *harness) run(req *pb.RunRequest) {
	h.t.Helper()
	_, err := h.Run(h.t.Context(), req)
	require.NoError(h.t, err)
}

// refused requires that a request is refused with code, and returns why.
func (h *harness) refused(req *pb.RunRequest, code codes.Code) string {
	h.t.Helper()
	_, err := h.Run(h.t.Context(), req)
	require.Equal(h.t, code, status.Code(err), "%v", err)
	return status.Convert(err).Message()
}

func (h *harness) cancel(id string) {
	h.t.Helper()
	_, err := h.Cancel(h.t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(h.t, err)
}

func (h *harness) list(ids ...string) []*pb.JobState {
	h.t.Helper()
	resp, err := h.List(h.t.Context(), &pb.ListRequest{Ids: ids})
	require.NoError(h.t, err)
	return resp.GetJobs()
}

// output is the output that FollowIO sends.
type output struct {
	streams [2][]byte
	err     error // nil if it came to its end
}

func (o output) stdout() string { return string(o.streams[pb.FollowIOResponse_stdout]) }
func (o output) stderr() string { return string(o.streams[pb.FollowIOResponse_stderr]) }

// followIO reads both streams from req's offsets to their end, or for at most limit bytes if that is
// not 0. It requires that each piece says where it belongs.
func (h *harness) followIO(ctx context.Context, req *pb.FollowIORequest, limit int) output {
	h.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.FollowIO(ctx, req)
	require.NoError(h.t, err)
	next := [2]int64{
		max(req.GetReadStdout64(), int64(req.GetReadStdout())),
		max(req.GetReadStderr64(), int64(req.GetReadStderr())),
	}
	var o output
	for limit == 0 || len(o.streams[0])+len(o.streams[1]) < limit {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return o
		}
		if err != nil {
			o.err = err
			return o
		}
		kind := piece.GetStreamType()
		require.Equal(h.t, next[kind], piece.GetOffset())
		require.NotEmpty(h.t, piece.GetStream())
		require.LessOrEqual(h.t, len(piece.GetStream()), maxPiece)
		next[kind] += int64(len(piece.GetStream()))
		o.streams[kind] = append(o.streams[kind], piece.GetStream()...)
	}
	return o
}

// output reads all a job writes; it waits for the job's end.
func (h *harness) output(id string) output {
	h.t.Helper()
	o := h.followIO(h.t.Context(), &pb.FollowIORequest{Id: id}, 0)
	require.NoError(h.t, o.err)
	return o
}

// awaitOutput waits until a job has written n bytes.
func (h *harness) awaitOutput(id string, n int) string {
	h.t.Helper()
	o := h.followIO(h.t.Context(), &pb.FollowIORequest{Id: id}, n)
	require.NoError(h.t, o.err)
	return o.stdout()
}

// follow returns all messages of Follow: the steps' changes, as "name status", and the last one.
func (h *harness) follow(id string) (changes []string, last *pb.FollowResponse) {
	h.t.Helper()
	stream, err := h.Follow(h.t.Context(), &pb.FollowRequest{Id: id})
	require.NoError(h.t, err)
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			require.NotNil(h.t, last)
			return changes, last
		}
		require.NoError(h.t, err)
		require.Nil(h.t, last, "the last message is the last")
		if msg.GetJob() != nil {
			last = msg
			continue
		}
		changes = append(changes, msg.GetResult().GetStep().GetName()+" "+msg.GetResult().GetStatus().String())
	}
}

// end waits for a job's end.
func (h *harness) end(id string) *pb.JobState {
	h.t.Helper()
	_, last := h.follow(id)
	return last.GetJob()
}
