package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
)

// restarts is a manager that is away for a second after the first and the tenth minute. Its build says nothing, and
// ends after twenty minutes.
type restarts struct {
	pb.ManagerClient
	start time.Time
}

func (*restarts) Get(context.Context, *pb.GetRequest, ...grpc.CallOption) (*pb.Build, error) {
	return &pb.Build{Id: "1", Phase: pb.Build_running}, nil
}

type quietLog struct {
	grpc.ServerStreamingClient[pb.FollowResponse]
	m   *restarts
	ctx context.Context
}

func (m *restarts) Follow(ctx context.Context, _ *pb.FollowRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[pb.FollowResponse], error,
) {
	return &quietLog{m: m, ctx: ctx}, nil
}

func (q *quietLog) Recv() (*pb.FollowResponse, error) {
	at := time.Since(q.m.start)
	for _, end := range []time.Duration{time.Minute, 10 * time.Minute} {
		if at < end+time.Second {
			_ = pause.For(q.ctx, end-at)
			return nil, status.Error(codes.Unavailable, "connection refused")
		}
	}
	_ = pause.For(q.ctx, 20*time.Minute-at)
	return &pb.FollowResponse{Build: &pb.Build{Id: "1", Result: &pb.Result{}}}, nil
}

// After the first restart while a build said nothing, the second one ended logs -f at once.
func TestAQuietBuildIsFollowedOverSeveralRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &restarts{start: time.Now()}
		b, err := followLog(t.Context(), m, "1", true, io.Discard, io.Discard)
		require.NoError(t, err)
		require.Equal(t, "1", b.GetId())
	})
}

// noQuorum is a manager whose NATS cluster does not answer.
type noQuorum struct{ restarts }

func (noQuorum) Follow(ctx context.Context, _ *pb.FollowRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[pb.FollowResponse], error,
) {
	_ = pause.For(ctx, 10*time.Second)
	return nil, status.Error(codes.Unavailable, "NATS: has the cluster lost its quorum?")
}

// logs -f waited for ever, without a word, for a manager whose NATS cluster had no quorum: each call took so long that
// the manager seemed to be back meanwhile.
func TestALogIsNotAwaitedForEverWithoutAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := followLog(ctx, &noQuorum{}, "1", true, io.Discard, io.Discard)
		require.ErrorContains(t, err, "has the cluster lost its quorum?")
	})
}

// On a terminal one byte was missing at each place where a long line was cut.
func TestALongLineOnATerminalIsComplete(t *testing.T) {
	var out bytes.Buffer
	l := &lines{to: &out, plain: true}
	text := strings.Repeat("0123456789", maxLine/10*3)
	require.NoError(t, l.write([]byte(text)))
	require.NoError(t, l.end())
	require.Equal(t, text, strings.ReplaceAll(out.String(), "\n", ""))
}

// inLine is a manager whose only VM is down. Its build waits for ten seconds, and is canceled.
type inLine struct{ pb.ManagerClient }

type emptyLog struct {
	grpc.ServerStreamingClient[pb.FollowResponse]
}

func (inLine) Follow(context.Context, *pb.FollowRequest, ...grpc.CallOption) (
	grpc.ServerStreamingClient[pb.FollowResponse], error,
) {
	return emptyLog{}, nil
}

func (emptyLog) Recv() (*pb.FollowResponse, error) {
	_ = pause.For(context.Background(), 10*time.Second)
	return &pb.FollowResponse{Build: &pb.Build{Id: "1"}}, nil
}

func (inLine) Get(context.Context, *pb.GetRequest, ...grpc.CallOption) (*pb.Build, error) {
	return &pb.Build{Id: "1", Phase: pb.Build_queued}, nil
}

func (inLine) Status(context.Context, *pb.StatusRequest, ...grpc.CallOption) (*pb.StatusResponse, error) {
	const text = `{"instances":[{"id":"vm-1","state":"quarantined","reason":"connection refused"},{"id":"vm-2"}]}`
	return &pb.StatusResponse{Json: []byte(text)}, nil
}

// submit --wait said nothing while its build waited for a VM that was down.
func TestABuildThatWaitsSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		_, err := followLog(t.Context(), inLine{}, "1", true, io.Discard, &said)
		require.NoError(t, err)
		require.Equal(t, "stepmux: build 1 waits for a slot on a VM\n"+
			"stepmux: vm-1 is quarantined: connection refused\n", said.String())
	})
}
