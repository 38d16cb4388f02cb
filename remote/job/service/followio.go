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
	send := func(kind pb.FollowIOResponse_StreamType) func([]byte, int64) error {
		return func(piece []byte, offset int64) error {
			sending.Lock()
			defer sending.Unlock()
			return stream.Send(&pb.FollowIOResponse{Stream: piece, StreamType: kind, Offset: offset})
		}
	}
	group, ctx := errgroup.WithContext(stream.Context())
	group.Go(func() error { return follow(ctx, f, job.Stdout, stdout, send(pb.FollowIOResponse_stdout)) })
	group.Go(func() error { return follow(ctx, f, job.Stderr, stderr, send(pb.FollowIOResponse_stderr)) })
	return followed(stream.Context(), req.GetId(), f, group.Wait())
}

// followed ends a call that followed the output of the job id until err or its end. It returns nil only when the job's
// state is final.
func followed(ctx context.Context, id string, f *job.Follower, err error) error {
	if err == nil {
		_, _, err = f.Wait(ctx)
	}
	if err != nil && status.Code(err) == codes.Unknown { // not the stream's own
		return statusOf(id, err)
	}
	return err
}

// follow sends stream from offset to its end, each piece with its offset.
func follow(
	ctx context.Context, f *job.Follower, stream job.Stream, offset int64, send func(piece []byte, offset int64) error,
) error {
	read := func(p []byte, at int64) (int, error) { return f.ReadAt(ctx, stream, p, at) }
	return sendPieces(read, offset, send)
}

// sendPieces sends the bytes of read from offset to io.EOF, each piece with its offset.
func sendPieces(
	read func(p []byte, at int64) (int, error), offset int64, send func(piece []byte, offset int64) error,
) error {
	piece := pieces.Get().(*[maxPiece]byte)
	defer pieces.Put(piece)
	for {
		n, err := read(piece[:], offset)
		if n > 0 {
			// Send encodes the message before it returns, so the piece can be used again.
			if err := send(piece[:n], offset); err != nil {
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
