package connector

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// warningServer has a job of one step with warnings.
type warningServer struct {
	endedJob
	asked *pb.RunRequest
}

func (s *warningServer) Run(_ context.Context, req *pb.RunRequest) (*pb.RunResponse, error) {
	s.asked = req
	return &pb.RunResponse{}, nil
}

func (s *warningServer) Follow(_ *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	step := &pb.Step{Name: "a"}
	for _, m := range []*pb.FollowResponse{
		{Result: &pb.StepResult{Step: step, Status: pb.StepResult_running}},
		{Result: &pb.StepResult{
			Step: step, Status: pb.StepResult_success, Warnings: []string{"first", "second\x1b[1m\nthird"},
		}},
		{Job: s.last},
	} {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func TestWarningsAboutAStepAreInTheBuildsLogOnce(t *testing.T) {
	s := &warningServer{}
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	c := connectTo(t, s)
	var log sshtest.Log
	result, err := c.Execute(
		t.Context(),
		Job{Job: &pb.Job{Script: "true", PassEnv: []string{"all", "GOPATH"}, UnsafeExports: "refuse"}},
		&log,
	)
	require.NoError(t, err)
	require.Equal(t, Succeeded, result.Status)
	require.Equal(t, []string{"all", "GOPATH"}, s.asked.GetJob().GetPassEnv())
	require.Equal(t, "refuse", s.asked.GetJob().GetUnsafeExports())
	require.Contains(t, log.String(), "step runner: warning: step \"a\": first\n")
	require.NotContains(t, log.String(), "\x1b")
	require.NotContains(t, log.String(), "\nthird")
}

// Without a Writer for the output, a goroutine of the log panicked at the first byte, and ended the whole process.
func TestTheOutputOfAJobWithoutATraceIsDiscarded(t *testing.T) {
	c := connectTo(t, &endedJob{
		output: []*pb.FollowIOResponse{stdout("hello\n")},
		last:   &pb.JobState{Status: pb.JobState_suceeded, StdoutLen: 6}, //nolint:misspell // the published spelling
	})
	result, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "echo hello"}}, nil)
	require.NoError(t, err)
	require.Equal(t, Succeeded, result.Status)
}

// The steps ran in the directory of the project, and the work directory was left out without a word.
func TestAJobHasNotBothAProjectAndAWorkDir(t *testing.T) {
	for _, job := range []Job{
		{Job: &pb.Job{Script: "true"}, WorkDir: "dir", Project: &files.Project{}},
		{Job: &pb.Job{Script: "true"}, WorkDir: "dir", Artifacts: &files.Artifacts{}},
	} {
		c := connectTo(t, &warningServer{})
		_, err := c.Execute(sshtest.Within(t), job, io.Discard)
		require.ErrorAs(t, err, new(*RequestError))
		require.ErrorContains(t, err, "work directory")
	}
}

// A negative timeout, such as the time until a deadline that has passed, counted as none: the job ran without one.
func TestAJobWithANegativeTimeIsRefused(t *testing.T) {
	negative := durationpb.New(-time.Second)
	for _, job := range []Job{
		{Job: &pb.Job{Script: "true", Timeout: negative}}, {Job: &pb.Job{Script: "true", Grace: negative}},
	} {
		for _, server := range []any{&warningServer{}, &refusingServer{}} {
			c := connectTo(t, server)
			_, err := c.Execute(sshtest.Within(t), job, io.Discard)
			require.ErrorAs(t, err, new(*RequestError))
			require.ErrorContains(t, err, "negative")
		}
	}
}

func TestStepRunnerOfAnotherMakeTakesNoPolicy(t *testing.T) {
	s := &refusingServer{refuse: func(*runnerproto.RunRequest) error { panic("the job was sent") }}
	c := connectTo(t, s)
	for _, job := range []*pb.Job{
		{Script: "true", PassEnv: []string{"all"}},
		{Script: "true", UnsafeExports: "allow"},
		{Script: "true", Outputs: true},
	} {
		_, err := c.Execute(t.Context(), Job{Job: job}, &sshtest.Log{})
		var refused *RequestError
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, "does not know the option ")
	}
	_, err := c.Execute(t.Context(), Job{Job: &pb.Job{Script: "true"}, Stderr: io.Discard}, &sshtest.Log{})
	require.IsType(t, &RequestError{}, err)
	require.ErrorContains(t, err, "does not tell stdout and stderr apart")
}

// gRPC takes such text for a failure of the transport, which is repeated: the build did not end. One script in Latin-1
// was enough.
func TestAJobThatIsNotUTF8IsRefused(t *testing.T) {
	c := connectTo(t, &warningServer{})
	_, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "echo caf\xe9"}}, io.Discard)
	require.ErrorAs(t, err, new(*RequestError))
	require.ErrorContains(t, err, "UTF-8")
}
