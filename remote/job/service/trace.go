package service

import (
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
		return status.Error(codes.InvalidArgument, "offset: use an offset that is not negative")
	}
	return follow(r.store, req.GetId(), func(f *job.Follower) error {
		if _, _, err := f.Wait(stream.Context()); err != nil {
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
		return sendPieces(read, req.GetOffset(), func(piece []byte, _ int64) error {
			return stream.Send(&pb.TraceResponse{Data: piece})
		})
	})
}
