package service

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// trace reads the trace of a job from offset on. No piece of it is large.
func (h *harness) trace(id string, offset int64) (string, error) {
	h.t.Helper()
	stream, err := h.Trace(h.t.Context(), &pb.TraceRequest{Id: id, Offset: offset})
	require.NoError(h.t, err)
	var all strings.Builder
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all.String(), nil
		}
		if err != nil {
			return all.String(), err
		}
		require.LessOrEqual(h.t, len(msg.GetData()), 1<<20)
		all.Write(msg.GetData())
	}
}

func TestTraceComesWhenTheJobHasEnded(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.Version = "v1" })
	large := strings.Repeat("x", 100<<10)
	for id, req := range map[string]*pb.RunRequest{
		"yaml":   yaml("yaml", "- {name: a, script: 'exit 3', env: {LARGE: "+large+"}}\n"),
		"script": script("script", "exit 3 # "+large),
		"steps":  {Id: "steps", Type: pb.RunRequest_step, Steps: []*pb.Step{{Name: "a", Script: "exit 3 # " + large}}},
	} {
		req.Trace = true
		h.run(req)
		text, err := h.trace(id, 0) // waits for the job's end
		require.NoError(t, err)
		made, err := trace.Parse([]byte(text))
		require.NoError(t, err)
		require.Equal(t, new(3), made.Identity.ExitCode)
		require.Equal(t, trace.FromGRPC, made.Identity.Job.Source.Kind)
		require.Len(t, made.Identity.Job.Source.Digest[trace.SHA256], 64)
		require.Equal(t, "v1", made.Identity.Runtime.Runner.Version)
		rest, err := h.trace(id, 70_000)
		require.NoError(t, err)
		require.Equal(t, text[70_000:], rest)
		beyond, err := h.trace(id, int64(len(text))+1)
		require.NoError(t, err)
		require.Empty(t, beyond)
		h.cancel(id) // removes it
		_, err = h.trace(id, 0)
		require.Equal(t, codes.NotFound, status.Code(err))
	}
}

func TestTraceOfACancelledJobIsThere(t *testing.T) {
	h := newHarness(t)
	req := script("1", "echo ready; sleep 600")
	req.Trace = true
	h.run(req)
	h.awaitOutput("1", len("ready\n"))
	h.cancel("1")
	text, err := h.trace("1", 0)
	require.NoError(t, err)
	made, err := trace.Parse([]byte(text))
	require.NoError(t, err)
	require.Equal(t, trace.Cancelled, made.Identity.Status)
}

func TestTraceThatThereIsNotIsRefused(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", "echo"))
	_, err := h.trace("1", 0)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, `job "1": the job has no trace`)
	_, err = h.trace("none", 0)
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = h.trace("1", -1)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}
