package connector

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// hostileMemory bounds the memory that a hostile step runner can make a connection hold.
const hostileMemory = 64 << 20

// rawCodec lets a server send any bytes as a message.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil // of these tests
}

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

func (rawCodec) Name() string { return "proto" }

// field returns the wire form of a field with bytes.
func field(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// answer is how a hostile step runner answers a method: this message, so often, then a last one, and then this error.
type answer struct {
	message []byte
	times   int
	last    []byte
	err     error
}

// serveHostile serves a step runner of a kind with these answers.
func serveHostile(t testing.TB, kind program.Kind, answers map[string]answer) *Connector {
	return connectTo(t, kind, grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxHeaderListSize(64<<20),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			name, _ := grpc.MethodFromServerStream(stream)
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			a, ok := answers[path.Base(name)]
			if !ok {
				return stream.SendMsg([]byte{})
			}
			for range a.times {
				if err := stream.SendMsg(a.message); err != nil {
					return err
				}
			}
			if a.last != nil {
				return stream.SendMsg(a.last)
			}
			return a.err
		}))
}

// heldMemory calls do, and returns how many bytes more were in use meanwhile, at most. It looks every 10 ms: a look is
// a garbage collection, and do needs the processors too.
func heldMemory(do func()) int64 {
	before, most := liveheap.Bytes(), int64(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		most = max(most, liveheap.Bytes()-before)
		select {
		case <-done:
			return most
		case <-look.C:
		}
	}
}

// Symptom: one message of 62 MiB with 32 million empty sub-messages took 4.7 GB of the manager's memory.
//
//stepmux:faults executor | A message with millions of empty parts takes gigabytes of the manager's memory
//stepmux:with remote/job/service.TestFollowIsBriefIfAsked
func TestFloodsOfAHostileStepRunnerCostNoMemory(t *testing.T) {
	racefree.Only(t)
	n, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_HOSTILE"), "20000"))
	require.NoError(t, err, "STEPMUX_HOSTILE")
	many := func(sub []byte, size int) []byte { return bytes.Repeat(sub, size/len(sub)) }
	const below = maxAnswer - 100
	result := func(inner []byte) []byte { return field(1, inner) }
	succeeded := field(20, []byte{2 << 3, 1}) // FollowResponse.job.status
	follow := func(message []byte, times int) map[string]answer {
		return map[string]answer{"Follow": {message: message, times: times, last: succeeded}}
	}
	for name, c := range map[string]struct {
		kind    program.Kind
		answers map[string]answer
		says    string // the error
	}{
		"a step with 32 million children":  {program.Stepmux, follow(result(many(field(8, nil), 62<<20)), 1), "larger"},
		"a step with two million children": {program.Stepmux, follow(result(many(field(8, nil), below)), 1+n/20000), ""},
		"a step with a million outputs":    {program.Stepmux, follow(result(many(field(5, field(1, nil)), below)), 1), ""},
		"a million outputs of the job":     {program.Stepmux, follow(field(21, many(field(1, nil), below)), 1), ""},
		"a step with variables":            {program.Stepmux, follow(result(field(1, many(field(3, nil), below))), 1), ""},
		"fields that are not known":        {program.Stepmux, follow(many(field(99, nil), below), 1), ""},
		"a result in two million parts":    {program.Stepmux, follow(many(result(nil), below), 1), ""},
		"steps without end":                {program.Stepmux, follow(result(field(22, []byte("x"))), maxEvents+n), "changes"},
		"long errors": {
			program.Stepmux,
			map[string]answer{"Run": {err: status.Error(codes.Unavailable, strings.Repeat("x", 2<<20))}},
			"deadline exceeded",
		},
		"a million jobs": {
			program.StepRunner, map[string]answer{"Status": {last: many(field(1, nil), below)}}, "does not know the job",
		},
	} {
		t.Run(name, func(t *testing.T) {
			connector := serveHostile(t, c.kind, c.answers)
			var err error
			held := heldMemory(func() {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if name == "long errors" { // they are asked for again
					ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
				}
				defer cancel()
				_, err = connector.Execute(ctx, Job{Job: &stepmuxv1.Job{Script: "a"}}, io.Discard)
			})
			t.Logf("at most %d KiB; %.100v", held>>10, err)
			require.Less(t, held, int64(hostileMemory))
			if c.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

// Symptom: the manager panicked.
func TestAStepRunnerCannotAskForAProjectThatTheJobDoesNotHave(t *testing.T) {
	for _, wanted := range []uint64{5, 1 << 63} {
		c := serveHostile(t, program.Stepmux, map[string]answer{
			"Place": {last: protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), wanted)},
		})
		_, err := c.Execute(t.Context(), Job{Job: &stepmuxv1.Job{Script: "a"}, Artifacts: &files.Artifacts{}}, io.Discard)
		require.ErrorContains(t, err, "bytes of a project, and the build has 0 bytes")
	}
}
