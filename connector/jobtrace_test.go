package connector

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// traceServer sends a trace in pieces, and breaks after each, or goes on without an end.
type traceServer struct {
	pb.UnimplementedStepRunnerServer
	text    string
	endless bool
}

func (s *traceServer) Trace(req *pb.TraceRequest, stream grpc.ServerStreamingServer[pb.TraceResponse]) error {
	piece := make([]byte, 1<<20)
	for s.endless {
		if err := stream.Send(&pb.TraceResponse{Data: piece}); err != nil {
			return err
		}
	}
	rest := s.text[req.GetOffset():]
	if err := stream.Send(&pb.TraceResponse{Data: []byte(rest[:min(3, len(rest))])}); err != nil {
		return err
	}
	if len(rest) > 3 {
		return status.Error(codes.Unavailable, "the bridge broke")
	}
	return nil
}

// ask returns an execution whose step runner is server.
func ask(t *testing.T, server pb.StepRunnerServer, job Job) *execution {
	t.Helper()
	client, done, err := connectTo(t, server).build.client()
	require.NoError(t, err)
	t.Cleanup(done)
	return &execution{rpc: pb.NewStepRunnerClient(client), job: job, traceTimeout: sshtest.Bound}
}

func TestTraceGoesOnWhereItsStreamBroke(t *testing.T) {
	var to bytes.Buffer
	e := ask(t, &traceServer{text: "0123456789"}, Job{Trace: &to})
	require.NoError(t, e.fetchTrace(t.Context()))
	require.Equal(t, "0123456789", to.String())
}

func TestStepRunnerThatKnowsNoTracesIsSaidToBeOld(t *testing.T) {
	e := ask(t, pb.UnimplementedStepRunnerServer{}, Job{Trace: &bytes.Buffer{}})
	require.ErrorIs(t, e.fetchTrace(t.Context()), ErrNoTrace)
}

// counter counts bytes, and fails after so many.
type counter struct{ n, limit int }

func (c *counter) Write(p []byte) (int, error) {
	if c.n += len(p); c.n > c.limit {
		return 0, errors.New("no room")
	}
	return len(p), nil
}

func TestTraceIsBounded(t *testing.T) {
	to := &counter{limit: maxTrace}
	e := ask(t, &traceServer{endless: true}, Job{Trace: to})
	require.ErrorContains(t, e.fetchTrace(t.Context()), "more than 134217728 bytes")
	require.Equal(t, maxTrace, to.n)

	e = ask(t, &traceServer{endless: true}, Job{Trace: &counter{limit: 1}})
	require.ErrorContains(t, e.fetchTrace(t.Context()), "no room")
}

// stuck is a Writer that does not return before it is let go.
type stuck struct {
	begun chan struct{} // receives when a write begins
	free  chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.begun <- struct{}{}
	<-s.free
	return len(p), nil
}

func TestTraceIsNotWaitedForWithoutEnd(t *testing.T) {
	to := &stuck{begun: make(chan struct{}, 100), free: make(chan struct{})}
	defer close(to.free)
	e := ask(t, &traceServer{text: "0123456789"}, Job{Trace: to})
	e.traceTimeout = time.Millisecond
	require.ErrorContains(t, e.fetchTrace(t.Context()), "took nothing for 1ms")
	<-to.begun

	e.traceTimeout = sshtest.Bound
	ctx, end := context.WithCancelCause(t.Context())
	go func() {
		<-to.begun
		end(ErrClosed)
	}()
	require.ErrorIs(t, e.fetchTrace(ctx), ErrClosed)
}
