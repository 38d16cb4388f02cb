package service

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/job"
)

// manager implements the service that GitLab Runner's manager calls. The .proto describes its methods.
type manager struct {
	runnerproto.UnimplementedStepRunnerServer
	store *job.Store
}

// Run implements the manager's StepRunner service.
func (m *manager) Run(_ context.Context, req *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	spec, err := managerSpecOf(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	err = m.store.Create(spec) //nolint:contextcheck // the job outlives the call
	return &runnerproto.RunResponse{}, statusOf(spec.ID, err)
}

// FollowLogs implements the manager's StepRunner service.
func (m *manager) FollowLogs(
	req *runnerproto.FollowLogsRequest, stream grpc.ServerStreamingServer[runnerproto.FollowLogsResponse],
) error {
	if req.GetOffset() < 0 {
		return status.Error(codes.InvalidArgument, "offset: use an offset that is not negative")
	}
	send := func(piece []byte, _ int64) error { return stream.Send(&runnerproto.FollowLogsResponse{Data: piece}) }
	return follow(m.store, req.GetId(), func(f *job.Follower) error {
		return sendStream(stream.Context(), f, job.Merged, req.GetOffset(), send)
	})
}

// Status implements the manager's StepRunner service.
func (m *manager) Status(_ context.Context, req *runnerproto.StatusRequest) (*runnerproto.StatusResponse, error) {
	var ids []string
	if req.GetId() != "" {
		ids = []string{req.GetId()}
	}
	stats := m.store.List(ids...)
	if len(ids) > 0 && len(stats) == 0 {
		return nil, statusOf(req.GetId(), job.ErrNotFound)
	}
	resp := &runnerproto.StatusResponse{}
	for _, stat := range stats {
		resp.Jobs = append(resp.Jobs, &runnerproto.Status{
			Id: stat.ID, Message: valid(stat.Message), Status: managerState[stat.State],
			StartTime: timestamp(stat.Started), EndTime: timestamp(stat.Finished),
		})
	}
	return resp, nil
}

// Cancel implements the manager's StepRunner service.
func (m *manager) Cancel(_ context.Context, req *runnerproto.CancelRequest) (*runnerproto.CancelResponse, error) {
	m.store.Stop(req.GetId())
	return &runnerproto.CancelResponse{}, nil
}

// Close implements the manager's StepRunner service.
func (m *manager) Close(_ context.Context, req *runnerproto.CloseRequest) (*runnerproto.CloseResponse, error) {
	m.store.Discard(req.GetId())
	return &runnerproto.CloseResponse{}, nil
}

var managerState = [...]runnerproto.Status_State{
	job.Running:   runnerproto.Status_running,
	job.Succeeded: runnerproto.Status_success,
	job.Failed:    runnerproto.Status_failure,
	job.Cancelled: runnerproto.Status_cancelled,
}
