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

// maxPiece bounds the output in one message, in bytes. The message so fits gRPC's buffers of 32 KiB. The next size in
// gRPC's pool is 1 MiB, and both ends clear the whole buffer for each message.
const maxPiece = 32<<10 - 64

var pieces = sync.Pool{New: func() any { return new([maxPiece]byte) }}

// FollowIO implements the StepRunner service.
func (r *runner) FollowIO(req *pb.FollowIORequest, stream grpc.ServerStreamingServer[pb.FollowIOResponse]) error {
	stdout := cmp.Or(req.GetReadStdout64(), int64(req.GetReadStdout()))
	stderr := cmp.Or(req.GetReadStderr64(), int64(req.GetReadStderr()))
	switch {
	case stdout < 0:
		return status.Error(codes.InvalidArgument, "read_stdout: use an offset that is not negative")
	case stderr < 0:
		return status.Error(codes.InvalidArgument, "read_stderr: use an offset that is not negative")
	}
	var sending sync.Mutex // a stream takes one message at a time
	send := func(kind pb.FollowIOResponse_StreamType) func([]byte, int64) error {
		return func(piece []byte, offset int64) error {
			sending.Lock()
			defer sending.Unlock()
			return stream.Send(&pb.FollowIOResponse{Stream: piece, StreamType: kind, Offset: offset})
		}
	}
	return follow(r.store, req.GetId(), func(f *job.Follower) error {
		group, ctx := errgroup.WithContext(stream.Context())
		group.Go(func() error { return sendStream(ctx, f, job.Stdout, stdout, send(pb.FollowIOResponse_stdout)) })
		group.Go(func() error { return sendStream(ctx, f, job.Stderr, stderr, send(pb.FollowIOResponse_stderr)) })
		return group.Wait()
	})
}

// sendStream sends stream from offset to its end, each piece with its offset. Then it waits until the job's state is
// final.
func sendStream(
	ctx context.Context, f *job.Follower, stream job.Stream, offset int64, send func(piece []byte, offset int64) error,
) error {
	read := func(p []byte, at int64) (int, error) { return f.ReadAt(ctx, stream, p, at) }
	if err := sendPieces(read, offset, send); err != nil {
		return err
	}
	_, _, err := f.Wait(ctx)
	return err
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
			// Send encodes the message before it returns, so the next message can use the same piece.
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
