package connector

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// connectTo returns a Connector whose Connect has reached server, a pb.StepRunnerServer or a
// runnerproto.StepRunnerServer, or a step runner of this kind that the options serve. Both end with the test.
func connectTo(t testing.TB, server any, options ...grpc.ServerOption) *Connector {
	t.Helper()
	kind, s := program.Stepmux, grpc.NewServer(options...)
	switch server := server.(type) {
	case program.Kind:
		kind = server
	case pb.StepRunnerServer:
		pb.RegisterStepRunnerServer(s, server)
	case pb.AttachmentServer:
		pb.RegisterAttachmentServer(s, server)
	case runnerproto.StepRunnerServer:
		kind = program.StepRunner
		runnerproto.RegisterStepRunnerServer(s, server)
	}
	if server, ok := server.(pb.FilesServer); ok {
		pb.RegisterFilesServer(s, server)
	}
	if server, ok := server.(pb.ReachServer); ok {
		pb.RegisterReachServer(s, server)
	}
	listener := bufconn.Listen(1 << 16)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(listener) })
	c := &Connector{cfg: Config{VM: new(VM), BuildID: "b1", LogTimeout: 24 * time.Hour}, secret: wire.NewSecret()}
	require.NoError(t, c.cfg.setDefaults())
	c.closing, c.connected = make(chan struct{}), make(chan struct{})
	close(c.connected)
	c.life, c.end = context.WithCancelCause(t.Context())
	b := &build{c: c, conn: noConn{}, program: &program.Program{Kind: kind}, serve: &serve{socket: "/tmp/b1/s"}}
	b.serve.ready.Store(true)
	b.early, b.bridges = make(chan net.Conn, 1), map[*bridge]struct{}{}
	raw, err := listener.DialContext(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.keepEarly(raw))
	c.build = b
	t.Cleanup(func() {
		c.end(ErrClosed)
		_ = raw.Close() // if no call took it, Stop would wait two minutes for its HTTP/2 preface
		s.Stop()
		serving.Wait()
	})
	return c
}

// noConn opens no second bridge.
type noConn struct{ Conn }

func (noConn) DialUnix(context.Context, string) (*mux.Stream, error) {
	return nil, errors.New("there is one bridge")
}

// endedJob is a step runner whose job has ended before anybody follows it, with this output and this final state.
type endedJob struct {
	pb.UnimplementedStepRunnerServer
	output []*pb.FollowIOResponse
	last   *pb.JobState
	given  *pb.Outputs
	trace  []byte

	mu        sync.Mutex // guards the following
	cancelled bool
}

func (s *endedJob) Run(context.Context, *pb.RunRequest) (*pb.RunResponse, error) {
	return &pb.RunResponse{}, nil
}

func (s *endedJob) Follow(_ *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	return stream.Send(&pb.FollowResponse{Job: s.last, Outputs: s.given})
}

func (s *endedJob) FollowIO(_ *pb.FollowIORequest, stream grpc.ServerStreamingServer[pb.FollowIOResponse]) error {
	for _, piece := range s.output {
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

func (s *endedJob) Trace(_ *pb.TraceRequest, stream grpc.ServerStreamingServer[pb.TraceResponse]) error {
	return stream.Send(&pb.TraceResponse{Data: s.trace})
}

func (s *endedJob) Cancel(context.Context, *pb.CancelRequest) (*pb.CancelResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	return &pb.CancelResponse{}, nil
}

// stdout returns a piece of standard output.
func stdout(text string) *pb.FollowIOResponse {
	return &pb.FollowIOResponse{StreamType: pb.FollowIOResponse_stdout, Stream: []byte(text)}
}

// Symptom: a job that had succeeded was reported as job_execution_timeout when its time ended while its log or its
// trace were still being delivered.
//
//stepmux:faults executor | A job that succeeded is reported as timed out because its log was slow
//stepmux:with connector.TestASlowLogIsNoTimeoutOfAJobThatAManagersStepRunnerEndedWell
func TestAResultInHandWinsAgainstAContextThatEndsDuringDelivery(t *testing.T) {
	const text = "output\n"
	for _, name := range []string{"log", "trace"} {
		synctest.Test(t, func(t *testing.T) {
			server := &endedJob{
				output: []*pb.FollowIOResponse{stdout(text)}, trace: []byte("{}"),
				last: &pb.JobState{Status: pb.JobState_suceeded, StdoutLen: int64(len(text))}, //nolint:misspell // as published
			}
			c := connectTo(t, server)
			log, trace := &slowLog{let: make(chan struct{})}, &slowLog{let: make(chan struct{})}
			slow, quick := log, trace
			if name == "trace" {
				slow, quick = trace, log
			}
			close(quick.let)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var result Result
			var err error
			traced := errors.New("OnTrace was not called")
			var executing sync.WaitGroup
			executing.Go(func() {
				job := Job{Job: &pb.Job{Script: "a"}, Trace: trace, OnTrace: func(err error) { traced = err }}
				result, err = c.Execute(ctx, job, log)
			})
			<-ctx.Done() // the job has ended long before
			synctest.Wait()
			close(slow.let)
			executing.Wait()
			require.NoError(t, err, name)
			require.Equal(t, Result{Status: Succeeded}, result)
			require.NoError(t, traced)
			require.Equal(t, text, log.String())
			require.Equal(t, "{}", trace.String())
			require.False(t, server.cancelled, "the cancellation of a job that has ended removes it")
		})
	}
}

// Symptom: a job of which 14 of 1,000,000 bytes of output had arrived was a success.
//
//stepmux:faults executor | The step runner tells of more output than arrived, and the job counts as a success
func TestOutputThatDidNotArriveWholeIsLost(t *testing.T) {
	const text = "fourteen bytes"
	at := func(offset int64, kind pb.FollowIOResponse_StreamType) *pb.FollowIOResponse {
		return &pb.FollowIOResponse{StreamType: kind, Stream: []byte(text), Offset: offset}
	}
	for name, c := range map[string]struct {
		output         []*pb.FollowIOResponse
		stdout, stderr int64 // as the step runner tells them
		says           string
	}{
		"whole":         {output: []*pb.FollowIOResponse{at(0, 0), at(0, 1), at(14, 0)}, stdout: 28, stderr: 14},
		"short stdout":  {output: []*pb.FollowIOResponse{at(0, 0)}, stdout: 1_000_000, says: "14 of 1000000 bytes of stdout"},
		"short stderr":  {output: []*pb.FollowIOResponse{at(0, 1)}, stderr: 15, says: "14 of 15 bytes of stderr"},
		"without a bit": {output: []*pb.FollowIOResponse{at(0, 0), at(20, 0)}, stdout: 28, says: "byte 20, not from byte 14"},
		"twice":         {output: []*pb.FollowIOResponse{at(0, 1), at(0, 1)}, stderr: 28, says: "byte 0, not from byte 14"},
	} {
		t.Run(name, func(t *testing.T) {
			last := &pb.JobState{StdoutLen: c.stdout, StderrLen: c.stderr}
			last.Status = pb.JobState_suceeded //nolint:misspell // as published
			connector := connectTo(t, &endedJob{output: c.output, last: last})
			var log bytes.Buffer
			result, err := connector.Execute(t.Context(), Job{Job: &pb.Job{Script: "a"}}, &log)
			require.Contains(t, log.String(), text, "the rest is delivered")
			if c.says == "" {
				require.NoError(t, err)
				require.Equal(t, Result{Status: Succeeded}, result)
				return
			}
			require.ErrorContains(t, err, c.says)
			require.Equal(t, Result{}, result)
		})
	}
}

// lone is a Writer for one goroutine at a time.
type lone struct {
	text        bytes.Buffer
	busy, twice atomic.Bool
}

func (l *lone) Write(p []byte) (int, error) {
	if l.busy.Swap(true) {
		l.twice.Store(true)
		return len(p), nil
	}
	defer l.busy.Store(false)
	for range 10_000 {
		runtime.Gosched() // to another goroutine that writes
	}
	return l.text.Write(p)
}

// With one Writer for the job's stdout and its stderr, two goroutines wrote to it at the same time.
func TestOneWriterForAllOutputIsWrittenByOneGoroutineAtATime(t *testing.T) {
	s := &warningServer{}
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	for range 100 {
		s.output = append(s.output, stdout("o\n"), &pb.FollowIOResponse{
			StreamType: pb.FollowIOResponse_stderr, Stream: []byte("e\n"), Offset: s.last.GetStderrLen(),
		})
		s.output[len(s.output)-2].Offset = s.last.GetStdoutLen()
		s.last.StdoutLen += 2
		s.last.StderrLen += 2
	}
	c := connectTo(t, s)
	all := &lone{}
	result, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "true"}, Stderr: all}, all)
	require.NoError(t, err)
	require.Equal(t, Succeeded, result.Status)
	require.False(t, all.twice.Load())
	text := all.text.String()
	require.Equal(t, 100, strings.Count(text, "o\n"))
	require.Equal(t, 100, strings.Count(text, "e\n"))
	require.Contains(t, text, "step runner: warning: step \"a\": first\n")
}

func TestOutputsOfAJobReachItsCaller(t *testing.T) {
	job := Job{Job: &pb.Job{Script: "a"}}
	var values map[string]string
	var masked []string
	job.OnOutputs = func(v map[string]string, m []string) { values, masked = v, m }
	succeeded := &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // as published
	given := []*pb.Outputs_Output{
		{Name: "b", Masked: true}, {Name: "v", Value: "1"}, {Name: "a", Masked: true, Value: "x"},
	}
	c := connectTo(t, &endedJob{last: succeeded, given: &pb.Outputs{Given: given}})
	result, err := c.Execute(sshtest.Within(t), job, nil)
	require.NoError(t, err)
	require.Equal(t, Succeeded, result.Status)
	require.Equal(t, map[string]string{"v": "1"}, values)
	require.Equal(t, []string{"a", "b"}, masked)

	c = connectTo(t, &endedJob{last: succeeded, given: &pb.Outputs{Refused: "too many"}})
	result, err = c.Execute(sshtest.Within(t), job, nil)
	require.NoError(t, err)
	require.Equal(t, Result{Status: Failed, Message: "too many"}, result)
	require.Empty(t, values)

	long := []*pb.Outputs_Output{{Name: "a", Value: "x"}, {Name: "b", Value: strings.Repeat("x", maxOutputs)}}
	c = connectTo(t, &endedJob{last: succeeded, given: &pb.Outputs{Given: long}})
	result, err = c.Execute(sshtest.Within(t), job, nil)
	require.NoError(t, err)
	require.Equal(t, Result{Status: Failed, Message: "the step runner has sent too many outputs"}, result)
	require.Empty(t, values)
}
