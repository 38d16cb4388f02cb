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
)

// runner implements the StepRunner service. The .proto documents its methods.
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
	if err := r.store.Create(spec); err != nil {
		return nil, statusOf(req.GetId(), err)
	}
	return &pb.RunResponse{}, nil
}

// Follow implements the StepRunner service.
func (r *runner) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	ctx := stream.Context()
	f, err := r.store.Follow(req.GetId())
	if err != nil {
		return statusOf(req.GetId(), err)
	}
	defer f.Close()
	for n := 0; ; n++ {
		event, err := f.Event(ctx, n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return statusOf(req.GetId(), err)
		}
		if err := stream.Send(fit(&pb.FollowResponse{Result: stepResult(event)})); err != nil {
			return err
		}
	}
	stat, result, err := f.Wait(ctx)
	if err != nil {
		return statusOf(req.GetId(), err)
	}
	return stream.Send(fit(&pb.FollowResponse{Result: jobResult(stat, result), Job: jobOf(stat)}))
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
		resp.Jobs = append(resp.Jobs, jobOf(stat))
	}
	return resp, nil
}

// statusOf translates an error of the store about the job id.
func statusOf(id string, err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, job.ErrExists):
		code = codes.AlreadyExists
	case errors.Is(err, job.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, job.ErrNotMerged), errors.Is(err, job.ErrNoTrace):
		code = codes.FailedPrecondition
	case errors.Is(err, job.ErrFull):
		code = codes.ResourceExhausted
	case errors.Is(err, job.ErrShutdown):
		code = codes.Unavailable
	case errors.Is(err, joblog.ErrOffset):
		code = codes.OutOfRange
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	if !validID(id) { // do not repeat it
		return status.Error(code, err.Error())
	}
	return status.Error(code, fmt.Sprintf("job %q: %v", id, err))
}
