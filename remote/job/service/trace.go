package service

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

// Trace implements the StepRunner service.
func (r *runner) Trace(req *pb.TraceRequest, stream grpc.ServerStreamingServer[pb.TraceResponse]) error {
	if req.GetOffset() < 0 {
		return status.Error(codes.InvalidArgument, "offset: it is not negative")
	}
	f, err := r.store.Follow(req.GetId())
	if err != nil {
		return statusOf(req.GetId(), err)
	}
	defer f.Close()
	if err := sendTrace(stream.Context(), f, req.GetOffset(), stream); err != nil {
		if status.Code(err) == codes.Unknown { // not the stream's own
			return statusOf(req.GetId(), err)
		}
		return err
	}
	return nil
}

func sendTrace(
	ctx context.Context, f *job.Follower, offset int64, stream grpc.ServerStreamingServer[pb.TraceResponse],
) error {
	if _, _, err := f.Wait(ctx); err != nil {
		return err
	}
	file, err := f.Trace()
	switch {
	case errors.Is(err, job.ErrNoTrace):
		return err
	case err != nil:
		return status.Error(codes.DataLoss, err.Error())
	}
	defer file.Close()
	read := func(p []byte, at int64) (int, error) {
		n, err := file.ReadAt(p, at)
		if err != nil && !errors.Is(err, io.EOF) {
			err = status.Error(codes.DataLoss, err.Error())
		}
		return n, err
	}
	return sendPieces(read, offset, func(piece []byte, _ int64) error {
		return stream.Send(&pb.TraceResponse{Data: piece})
	})
}
