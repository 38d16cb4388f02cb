package connector

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// tellingServer is a step runner that masks nothing: its log breaks off after each piece, and its job fails with this
// message.
type tellingServer struct {
	runnerproto.UnimplementedStepRunnerServer
	log     string
	message string
}

func (s *tellingServer) Run(context.Context, *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	return &runnerproto.RunResponse{}, nil
}

func (s *tellingServer) FollowLogs(
	req *runnerproto.FollowLogsRequest, stream grpc.ServerStreamingServer[runnerproto.FollowLogsResponse],
) error {
	rest := s.log[req.GetOffset():]
	if err := stream.Send(&runnerproto.FollowLogsResponse{Data: []byte(rest[:min(9, len(rest))])}); err != nil {
		return err
	}
	if len(rest) > 9 {
		return status.Error(codes.Unavailable, "the bridge broke")
	}
	return nil
}

func (s *tellingServer) Status(_ context.Context, req *runnerproto.StatusRequest) (*runnerproto.StatusResponse, error) {
	job := &runnerproto.Status{Id: req.GetId(), Status: runnerproto.Status_failure, Message: s.message}
	return &runnerproto.StatusResponse{Jobs: []*runnerproto.Status{job}}, nil
}

// Symptom: a masked variable was printed in clear on a VM with another step runner, which does not mask.
//
//stepmux:faults executor | A masked variable is readable in the log of a step runner that does not mask
func TestMaskedVariablesAreInNoLogOfAnotherStepRunner(t *testing.T) {
	connector := connectTo(t, &tellingServer{
		log:     "the token is s3cr3t-t0k3n, in base64 czNjcjN0LXQwazNu, its name TOKEN; 42\nend s3cr3t",
		message: `run "curl s3cr3t-t0k3n": exit status 42`,
	})
	job := Job{Job: &stepmuxv1.Job{Script: "a", Variables: []*stepmuxv1.Variable{
		{Key: "TOKEN", Value: "s3cr3t-t0k3n", Masked: true},
		{Key: "ANSWER", Value: "42", Masked: true},
		{Key: "X", Value: "name"},
	}}}
	var log sshtest.Log
	result, err := connector.Execute(t.Context(), job, &log)
	require.NoError(t, err)
	const notice = "step runner: Variable ANSWER is not masked"
	require.Contains(t, log.String(), notice)
	require.Contains(t, log.String(), "the token is [MASKED], in base64 [MASKED], its name TOKEN; 42\nend s3cr3t")
	require.Equal(t, Result{Status: Failed, ExitCode: 42, Message: `run "curl [MASKED]": exit status 42`}, result)
}
