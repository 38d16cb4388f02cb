package connector

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// cachingServer leaves caches out, and cannot pack those whose pattern is bad.
type cachingServer struct {
	warningServer
	pb.UnimplementedFilesServer
	asked []*pb.PlaceRequest
}

func (s *cachingServer) Place(stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse]) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	s.asked = append(s.asked, req)
	resp := &pb.PlaceResponse{Dir: "/dir"}
	if req.GetCache() {
		resp.Note = "a reason"
	}
	return stream.Send(resp)
}

func (s *cachingServer) Collect(req *pb.CollectRequest, stream grpc.ServerStreamingServer[pb.CollectResponse]) error {
	if req.GetPaths()[0] == "bad" {
		return status.Error(codes.FailedPrecondition, "cannot pack")
	}
	return stream.Send(&pb.CollectResponse{Size: 1, Same: req.GetHas() != ""})
}

// A cache is no reason for a failure: a job went without it, or had succeeded.
func TestACacheNeverFailsAJob(t *testing.T) {
	digest := strings.Repeat("a", 64)
	for succeeded, state := range map[bool]pb.JobState_JobStatus{
		true: pb.JobState_suceeded, false: pb.JobState_failed, //nolint:misspell // the published spelling
	} {
		s := &cachingServer{}
		s.last = &pb.JobState{Status: state}
		var ends []error
		cache := func(path, has string, when func(bool) bool) *files.Cache {
			return &files.Cache{
				Artifacts: files.Artifacts{Paths: []string{path}}, Has: has, When: when,
				Save: func(_ context.Context, _ *os.File, err error) string {
					ends = append(ends, err)
					return "the cache " + path
				},
			}
		}
		job := Job{
			Job: &pb.Job{Script: "true"}, Project: &files.Project{Digest: digest, Size: 1},
			Overlays: []*files.Project{{Digest: strings.Repeat("c", 64), Size: 3}},
			Caches: func(context.Context) (files.Caches, error) {
				return files.Caches{
					Before: []*files.Project{{Digest: strings.Repeat("b", 64), Size: 2, Cache: true}},
					After: []*files.Cache{
						cache("bad", "", nil), cache("good", digest, func(ok bool) bool { return ok == succeeded }),
						cache("never", "", func(ok bool) bool { return ok != succeeded }),
					},
				}, nil
			},
		}
		var log strings.Builder
		_, err := connectTo(t, s).Execute(sshtest.Within(t), job, &log)
		require.NoError(t, err)
		require.Len(t, s.asked, 3)
		for i, size := range []int64{1, 2, 3} {
			require.Equal(t, size, s.asked[i].GetSize())
			require.Equal(t, i == 1, s.asked[i].GetCache())
		}
		require.Len(t, ends, 2)
		require.EqualError(t, ends[0], "cannot pack")
		require.ErrorIs(t, ends[1], files.ErrSame)
		require.Contains(t, log.String(), "cache: it is not restored: a reason\n")
		require.Contains(t, log.String(), "the cache good\n")
		require.NotContains(t, log.String(), "never")
	}
	_, err := connectTo(t, &cachingServer{}).Execute(sshtest.Within(t), Job{
		Job: &pb.Job{Script: "true"}, Caches: func(context.Context) (files.Caches, error) {
			return files.Caches{Before: []*files.Project{{}}}, nil
		},
	}, io.Discard)
	require.ErrorContains(t, err, "and no project")
}
