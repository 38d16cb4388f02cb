package connector

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// silentServer is a step runner whose job is silent for an hour. Its gRPC server has the default policy for pings.
type silentServer struct {
	runnerproto.UnimplementedStepRunnerServer
	calls int // of FollowLogs
}

func (s *silentServer) Run(context.Context, *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	return &runnerproto.RunResponse{}, nil
}

func (s *silentServer) FollowLogs(
	_ *runnerproto.FollowLogsRequest, stream grpc.ServerStreamingServer[runnerproto.FollowLogsResponse],
) error {
	s.calls++
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (s *silentServer) Status(_ context.Context, req *runnerproto.StatusRequest) (*runnerproto.StatusResponse, error) {
	job := &runnerproto.Status{Id: req.GetId(), Status: runnerproto.Status_success}
	return &runnerproto.StatusResponse{Jobs: []*runnerproto.Status{job}}, nil
}

// Symptom: after two minutes of silence another step runner, whose policy for pings is gRPC's default, closed the
// bridge with too_many_pings.
//
//stepmux:faults executor | Pings more often than the step runner's server allows close the bridge of a silent job
func TestASilentJobOfAnotherStepRunnerKeepsItsBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &silentServer{}
		connector := connectTo(t, server)
		result, err := connector.Execute(t.Context(), Job{Job: &stepmuxv1.Job{Script: "sleep 3600"}}, &sshtest.Log{})
		require.NoError(t, err)
		require.Equal(t, Result{Status: Succeeded}, result)
		require.Equal(t, 1, server.calls)
	})
}
