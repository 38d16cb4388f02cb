package service

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

// maxPiece is the most output in one message.
const maxPiece = 64 << 10

var pieces = sync.Pool{New: func() any { return new([maxPiece]byte) }}

// FollowIO implements the StepRunner service.
func (r *runner) FollowIO(req *pb.FollowIORequest, stream grpc.ServerStreamingServer[pb.FollowIOResponse]) error {
	stdout := cmp.Or(req.GetReadStdout64(), int64(req.GetReadStdout()))
	stderr := cmp.Or(req.GetReadStderr64(), int64(req.GetReadStderr()))
	switch {
	case stdout < 0:
		return status.Error(codes.InvalidArgument, "read_stdout: an offset is not negative")
	case stderr < 0:
		return status.Error(codes.InvalidArgument, "read_stderr: an offset is not negative")
	}
	f, err := r.store.Follow(req.GetId())
	if err != nil {
		return statusOf(req.GetId(), err)
	}
	defer f.Close()

	var sending sync.Mutex // a stream takes one message at a time
	send := func(m *pb.FollowIOResponse) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(m)
	}
	group, ctx := errgroup.WithContext(stream.Context())
	group.Go(func() error { return follow(ctx, f, job.Stdout, pb.FollowIOResponse_stdout, stdout, send) })
	group.Go(func() error { return follow(ctx, f, job.Stderr, pb.FollowIOResponse_stderr, stderr, send) })
	err = group.Wait()
	if err == nil {
		// Whoever has all the output can rely on the state being final.
		_, _, err = f.Wait(stream.Context())
	}
	if err != nil && status.Code(err) == codes.Unknown { // not the stream's own
		return statusOf(req.GetId(), err)
	}
	return err
}

// follow sends stream from offset to its end.
func follow(ctx context.Context, f *job.Follower, stream job.Stream, kind pb.FollowIOResponse_StreamType,
	offset int64, send func(*pb.FollowIOResponse) error,
) error {
	piece := pieces.Get().(*[maxPiece]byte)
	defer pieces.Put(piece)
	for {
		n, err := f.ReadAt(ctx, stream, piece[:], offset)
		if n > 0 {
			// Send has encoded the message when it returns: the piece is free again.
			if err := send(&pb.FollowIOResponse{Stream: piece[:n], StreamType: kind, Offset: offset}); err != nil {
				return err
			}
			offset += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
