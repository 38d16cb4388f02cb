package connector

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// endedServer is a step runner whose job has ended before anybody asks.
type endedServer struct {
	runnerproto.UnimplementedStepRunnerServer
	state  runnerproto.Status_State
	log    []byte
	cancel func()
}

func (s *endedServer) Run(context.Context, *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	return &runnerproto.RunResponse{}, nil
}

func (s *endedServer) FollowLogs(
	req *runnerproto.FollowLogsRequest, stream grpc.ServerStreamingServer[runnerproto.FollowLogsResponse],
) error {
	for rest := s.log[req.GetOffset():]; len(rest) > 0; {
		n := min(len(rest), 64<<10)
		if err := stream.Send(&runnerproto.FollowLogsResponse{Data: rest[:n]}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func (s *endedServer) Status(_ context.Context, req *runnerproto.StatusRequest) (*runnerproto.StatusResponse, error) {
	job := &runnerproto.Status{Id: req.GetId(), Status: s.state, Message: "exit status 7"}
	return &runnerproto.StatusResponse{Jobs: []*runnerproto.Status{job}}, nil
}

func (s *endedServer) Cancel(context.Context, *runnerproto.CancelRequest) (*runnerproto.CancelResponse, error) {
	s.cancel()
	return &runnerproto.CancelResponse{}, nil
}

func (s *endedServer) Close(context.Context, *runnerproto.CloseRequest) (*runnerproto.CloseResponse, error) {
	return &runnerproto.CloseResponse{}, nil
}

// slowLog takes nothing until it is let.
type slowLog struct {
	let chan struct{}
	bytes.Buffer
}

func (l *slowLog) Write(p []byte) (int, error) {
	<-l.let
	return l.Buffer.Write(p)
}

// Symptom: a job that succeeded was reported as timed out when its log took longer than the job's timeout.
func TestASlowLogIsNoTimeoutOfAJobThatAManagersStepRunnerEndedWell(t *testing.T) {
	for state, want := range map[runnerproto.Status_State]Result{
		runnerproto.Status_success: {Status: Succeeded},
		runnerproto.Status_failure: {Status: Failed, TimedOut: true, Message: "the job took longer than 1h0m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := &slowLog{let: make(chan struct{})}
			server := &endedServer{
				state: state, log: bytes.Repeat([]byte("log\n"), 1<<20), cancel: sync.OnceFunc(func() { close(slow.let) }),
			}
			listener := bufconn.Listen(1 << 16)
			s := grpc.NewServer()
			runnerproto.RegisterStepRunnerServer(s, server)
			var serving sync.WaitGroup
			serving.Go(func() { _ = s.Serve(listener) })
			client, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
			require.NoError(t, err)
			log := buildlog.New(slow, 24*time.Hour)
			job := Job{Job: &stepmuxv1.Job{Script: "a", Timeout: durationpb.New(time.Hour)}, ID: "1"}
			e := &gitlabExecution{rpc: runnerproto.NewStepRunnerClient(client), job: job, log: log}
			calls, end := context.WithCancelCause(t.Context())

			got, err := e.run(t.Context(), calls, end)
			require.NoError(t, err)
			require.Equal(t, want, got)

			end(nil)
			log.Close(t.Context())
			client.Close()
			s.Stop()
			serving.Wait()
			require.Equal(t, server.log, slow.Bytes())
		})
	}
}
