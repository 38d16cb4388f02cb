package connector

import (
	"io"
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

// olderServer takes one archive for a build, as a stepmux that does not know PlaceRequest.after.
type olderServer struct {
	warningServer
	pb.UnimplementedFilesServer
	has string
}

func (s *olderServer) Place(stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse]) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if s.has == "" {
		s.has = req.GetDigest()
	}
	if s.has != req.GetDigest() {
		return status.Error(codes.AlreadyExists, "the build has another project already")
	}
	return stream.Send(&pb.PlaceResponse{Dir: "/dir"})
}

func TestAnOlderStepRunnerTakesOneArchive(t *testing.T) {
	project := &files.Project{Digest: strings.Repeat("a", 64), Size: 1}
	over := &files.Project{Digest: strings.Repeat("b", 64), Size: 1}
	s := &olderServer{}
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	job := Job{Job: &pb.Job{Script: "true"}, Project: project}
	_, err := connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.NoError(t, err)
	job.Overlays = []*files.Project{over}
	_, err = connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.ErrorAs(t, err, new(*RequestError))
	require.ErrorContains(t, err, "too old for several archives in a build: install this version there")
	job.Project = nil
	_, err = connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.ErrorContains(t, err, "and no project")
}
