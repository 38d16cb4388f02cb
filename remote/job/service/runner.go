package service

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// runner implements the StepRunner service. The .proto describes its methods.
type runner struct {
	pb.UnimplementedStepRunnerServer
	store *job.Store
}

// Run implements the StepRunner service.
func (r *runner) Run(_ context.Context, req *pb.RunRequest) (*pb.RunResponse, error) {
	spec, err := specOf(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &pb.RunResponse{}, statusOf(spec.ID, r.store.Create(spec)) //nolint:contextcheck // the job outlives the call
}

// Follow implements the StepRunner service.
func (r *runner) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	send := func(m *pb.FollowResponse) error {
		if r := m.GetResult(); req.GetBrief() {
			r.Outputs, r.Exports, r.Path, r.ChildrenStepResults = nil, nil, nil, nil
		}
		return stream.Send(fit(m))
	}
	if req.GetFrom() < 0 {
		return status.Error(codes.InvalidArgument, "from: use a number of changes that is not negative")
	}
	return follow(r.store, req.GetId(), func(f *job.Follower) error {
		for n := int(req.GetFrom()); ; n++ {
			event, err := f.Event(stream.Context(), n)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if err := send(&pb.FollowResponse{Result: stepResult(event)}); err != nil {
				return err
			}
		}
		stat, result, err := f.Wait(stream.Context())
		if err != nil {
			return err
		}
		tree := stepResult(engine.StepResult{
			Status: result.Status, ExitCode: result.ExitCode, Message: result.Message, Steps: result.Steps,
			Outputs: result.Outputs, Exports: result.Exports, Started: stat.Started, Finished: stat.Finished,
		})
		last := &pb.FollowResponse{Result: tree, Job: stateOf(stat)}
		if stat.Outputs {
			last.Outputs = lastOutputs(result.Steps)
		}
		return send(last)
	})
}

// Cancel implements the StepRunner service.
func (r *runner) Cancel(_ context.Context, req *pb.CancelRequest) (*pb.CancelResponse, error) {
	r.store.Cancel(req.GetId(), req.GetForce())
	return &pb.CancelResponse{}, nil
}

// List implements the StepRunner service.
func (r *runner) List(_ context.Context, req *pb.ListRequest) (*pb.ListResponse, error) {
	resp := &pb.ListResponse{}
	for _, stat := range r.store.List(req.GetIds()...) {
		resp.Jobs = append(resp.Jobs, stateOf(stat))
	}
	return resp, nil
}

// codeOf maps errors that are not gRPC statuses to codes.
var codeOf = []struct {
	err  error
	code codes.Code
}{
	{job.ErrExists, codes.AlreadyExists},
	{job.ErrNotFound, codes.NotFound},
	{job.ErrNotMerged, codes.FailedPrecondition},
	{job.ErrNoTrace, codes.FailedPrecondition},
	{job.ErrFull, codes.ResourceExhausted},
	{job.ErrShutdown, codes.Unavailable},
	{joblog.ErrOffset, codes.OutOfRange},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// statusOf translates an error of the store about the job id. It returns a gRPC status unchanged.
func statusOf(id string, err error) error {
	if status.Code(err) != codes.Unknown {
		return err
	}
	code := codes.Internal
	for _, known := range codeOf {
		if errors.Is(err, known.err) {
			code = known.code
		}
	}
	if !validID(id) { // do not repeat it in the message
		return status.Error(code, err.Error())
	}
	return status.Error(code, fmt.Sprintf("job %q: %v", id, err))
}

// follow calls with with a follower of the job id, and returns its error as a gRPC status.
func follow(store *job.Store, id string, with func(*job.Follower) error) error {
	f, err := store.Follow(id)
	if err == nil {
		defer f.Close()
		err = with(f)
	}
	return statusOf(id, err)
}
