package service

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Symptom: a message of more than 32 KiB took a buffer of 1 MiB, which both ends cleared: a fifth of the cost of
// following a log.
func TestAMessageOfALogFitsABufferOf32KiB(t *testing.T) {
	piece := make([]byte, maxPiece)
	require.LessOrEqual(t, proto.Size(&pb.FollowIOResponse{
		Stream: piece, StreamType: pb.FollowIOResponse_stderr, Offset: math.MaxInt64,
	}), 32<<10)
	require.LessOrEqual(t, proto.Size(&runnerproto.FollowLogsResponse{Data: piece}), 32<<10)
}
