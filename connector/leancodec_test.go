package connector

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// A carryResponse has what a pb.CarryResponse has.
func FuzzCarryResponse(f *testing.F) {
	of := func(data string) []byte {
		text, err := proto.Marshal(&pb.CarryResponse{Data: []byte(data)})
		require.NoError(f, err)
		return text
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1)
	f.Add([]byte{})
	f.Add(of("one"))
	f.Add(append(of("one"), of("the last")...))
	f.Add(append(unknown, append(of("one"), unknown...)...))
	f.Add(of("cut off")[:4])
	told, err := proto.Marshal(&pb.CarryResponse{Told: proto.Int64(0)})
	require.NoError(f, err)
	f.Add(told)
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1))
	var got carryResponse // the memory of the message before
	f.Fuzz(func(t *testing.T, text []byte) {
		var want pb.CarryResponse
		err := got.unmarshal(text)
		if proto.Unmarshal(text, &want) == nil {
			require.NoError(t, err)
			require.Equal(t, string(want.GetData()), string(got.data))
			require.Equal(t, want.Told != nil && want.GetTold() >= 0, got.told >= 0)
			require.Equal(t, want.GetTold(), max(got.told, min(want.GetTold(), 0)))
		}
	})
}

func TestPiecesOfAConnectionAreDecodedIntoTheSameMemory(t *testing.T) {
	text, err := proto.Marshal(&pb.CarryResponse{Data: []byte(strings.Repeat("x", carried))})
	require.NoError(t, err)
	codec, message := leanCodec{encoding.GetCodecV2(grpcproto.Name)}, mem.BufferSlice{mem.SliceBuffer(text)}
	var msg carryResponse
	require.NoError(t, codec.Unmarshal(message, &msg))
	require.Len(t, msg.data, carried)
	first := &msg.data[0]
	require.NoError(t, codec.Unmarshal(message, &msg))
	require.Same(t, first, &msg.data[0])
}
