package service

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

func TestFollowSendsEachChangeAndThenTheFinalState(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: a, script: echo 1}\n- {name: b, script: echo 2}\n"))
	for range 2 { // while it runs or when it has ended, it is the same
		changes, last := h.follow("1")
		require.Equal(t, []string{"a running", "a success", "b running", "b success"}, changes)
		require.Equal(t, succeeded, last.GetJob().GetStatus())
		require.NotNil(t, last.GetJob().GetStartTime())
		require.NotNil(t, last.GetJob().GetFinishedTime())
		tree := last.GetResult()
		require.Empty(t, tree.GetStep().GetName())
		require.Equal(t, pb.StepResult_success, tree.GetStatus())
		require.Len(t, tree.GetChildrenStepResults(), 2)
		require.Equal(t, "b", tree.GetChildrenStepResults()[1].GetStep().GetName())
		require.NotNil(t, tree.GetChildrenStepResults()[1].GetFinishedTime())
	}
}

func TestFollowIsBriefIfAsked(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: one, script: exit 42}\n"))
	stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "1", Brief: true})
	require.NoError(t, err)
	var last *pb.FollowResponse
	for last.GetJob() == nil {
		last, err = stream.Recv()
		require.NoError(t, err)
		r := last.GetResult()
		require.Empty(t, r.GetPath())
		require.Empty(t, r.GetChildrenStepResults())
	}
	require.Equal(t, pb.StepResult_failure, last.GetResult().GetStatus())
	require.EqualValues(t, 42, last.GetJob().GetExitCode())
}

func TestFollowGoesOnFromAnyChange(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: a, script: echo 1}\n- {name: b, script: echo 2}\n"))
	all := []string{"running", "success", "running", "success"}
	for _, from := range []int{0, 1, 3, 4, 99} { // also past the last one
		stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "1", From: int64(from)})
		require.NoError(t, err)
		got := []string{}
		for {
			msg, err := stream.Recv()
			require.NoError(t, err)
			if msg.GetJob() != nil {
				break
			}
			got = append(got, msg.GetResult().GetStatus().String())
		}
		require.Equal(t, all[min(from, len(all)):], got)
	}
	stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "1", From: -1})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

func TestFollowSendsChangesAsTheyHappen(t *testing.T) {
	h := newHarness(t)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	h.run(yaml("1", "- {name: a, script: echo}\n- {name: b, script: '"+wait+"'}\n"))
	stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "1"})
	require.NoError(t, err)
	for _, want := range []string{"running", "success", "running"} {
		msg, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, want, msg.GetResult().GetStatus().String())
	}
	open()
	require.Equal(t, succeeded, h.end("1").GetStatus())
}

func TestFollowSendsAFailureAndItsCode(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: one, script: exit 42}\n- {name: two, script: echo}\n"))
	changes, last := h.follow("1")
	require.Equal(t, []string{"one running", "one failure", "two skipped"}, changes)
	for _, r := range []*pb.StepResult{last.GetResult(), last.GetResult().GetChildrenStepResults()[0]} {
		require.Equal(t, pb.StepResult_failure, r.GetStatus())
		require.EqualValues(t, 42, r.GetExitCode())
		require.Equal(t, `step "one": exec: exit status 42`, r.GetMessage())
	}
	require.Equal(t, pb.JobState_failed, last.GetJob().GetStatus())
	require.EqualValues(t, 42, last.GetJob().GetExitCode())
	require.False(t, last.GetJob().GetTimedOut())
}

func TestFollowIOKeepsTheStreamsApart(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: a, script: echo out; echo err >&2}\n- {name: b, script: echo more}\n"))
	o := h.output("1")
	require.Equal(t, "out\nmore\n", o.stdout(), "and nothing of the runner's own")
	require.Equal(t, "err\n", o.stderr())
	job := h.list("1")[0]
	require.NotEqual(t, pb.JobState_running, job.GetStatus(), "who has all output knows the final state")
	require.EqualValues(t, 9, job.GetStdoutLen())
	require.EqualValues(t, 4, job.GetStderrLen())
}

//stepmux:faults service | Output is altered on its way: blank lines and carriage returns vanish, a last newline is made
//stepmux:more up, and so offsets are wrong
//stepmux:with remote/job/service.TestOnlyTheManagersLogBeginsWithOurBytes
//stepmux:with remote/job/joblog.TestBytesAreReadAsWrittenFromAnyOffset
func TestFollowIOSendsBytesAsTheyAre(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", `printf 'a\r\n\n\0\377 \033[1m no newline at the end'`))
	require.Equal(t, "a\r\n\n\x00\xff \x1b[1m no newline at the end", h.output("1").stdout())
}

//stepmux:faults service | A prompt is not shown because it has no newline
//stepmux:with remote/job/service.TestFollowLogsSendsBytesAtOnceAndIsWokenByItsContext
func TestFollowIOSendsPartsOfLinesAtOnce(t *testing.T) {
	h := newHarness(t)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	h.run(script("1", "printf prompt; "+wait))
	require.Equal(t, "prompt", h.awaitOutput("1", 6))
	open()
	require.Equal(t, "prompt", h.output("1").stdout())
}

//stepmux:faults service | A line of output over 64 KiB disconnects the client that follows the job, and kills the job
//stepmux:with remote/job/service.TestFollowLogsContinuesFromAnyOffset
func TestFollowIOSendsALineOfAnyLength(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", `head -c 1048576 /dev/zero | tr '\0' x; echo; echo done`))
	require.Equal(t, strings.Repeat("x", 1<<20)+"\ndone\n", h.output("1").stdout())
	require.Equal(t, succeeded, h.end("1").GetStatus())
}

func TestFollowIOContinuesFromAnyOffset(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", "for i in $(seq 1 1000); do echo line $i; echo err $i >&2; done"))
	whole := h.output("1")
	require.True(t, strings.HasSuffix(whole.stdout(), "line 1000\n"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 100 {
		stdout, stderr := r.IntN(len(whole.stdout())+1), r.IntN(len(whole.stderr())+1)
		req := &pb.FollowIORequest{Id: "1", ReadStdout: int32(stdout), ReadStderr: int32(stderr)}
		if i%2 == 0 { // the 64-bit fields win
			req = &pb.FollowIORequest{
				Id:           "1",
				ReadStdout:   1,
				ReadStdout64: int64(stdout),
				ReadStderr:   1,
				ReadStderr64: int64(stderr),
			}
			if stdout == 0 || stderr == 0 {
				continue // 0 is not set
			}
		}
		rest := h.followIO(t.Context(), req, 0)
		require.NoError(t, rest.err)
		require.Equal(t, whole.stdout()[stdout:], rest.stdout())
		require.Equal(t, whole.stderr()[stderr:], rest.stderr())
	}
}

func TestFollowIORefusesInvalidOffsets(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", "echo hi"))
	require.Equal(t, succeeded, h.end("1").GetStatus())
	for code, req := range map[codes.Code]*pb.FollowIORequest{
		codes.InvalidArgument: {Id: "1", ReadStdout: -1},
		codes.OutOfRange:      {Id: "1", ReadStdout: 999},
		codes.NotFound:        {Id: "nope"},
	} {
		require.Equal(t, code, status.Code(h.followIO(t.Context(), req, 0).err))
	}
	for code, req := range map[codes.Code]*pb.FollowIORequest{
		codes.InvalidArgument: {Id: "1", ReadStderr64: -1},
		codes.OutOfRange:      {Id: "1", ReadStderr64: 1 << 40},
		codes.NotFound:        {Id: "../1"},
	} {
		require.Equal(t, code, status.Code(h.followIO(t.Context(), req, 0).err))
	}
	stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "nope"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
}

//stepmux:faults service | The server waits for a follower that has left, and takes half a minute to end
//stepmux:with remote.TestServeEndsWhileItsFollowersDoNotRead, remote.TestServeIsNotHeldUpByConnectionsThatSayNothing
func TestFollowersAreWokenByTheirContext(t *testing.T) {
	h := newHarness(t)
	req := script("1", "sleep 4731")
	h.run(req)
	ctx, cancel := context.WithCancel(t.Context())
	followIO, err := h.FollowIO(ctx, &pb.FollowIORequest{Id: "1"})
	require.NoError(t, err)
	follow, err := h.Follow(ctx, &pb.FollowRequest{Id: "1"})
	require.NoError(t, err)
	_, err = follow.Recv() // the step runs, and both calls have arrived
	require.NoError(t, err)
	cancel()
	_, err = followIO.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	_, err = follow.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	awaitReturn(t, "(*runner).FollowIO(", "(*runner).Follow(")
	require.Equal(t, pb.JobState_running, h.list()[0].GetStatus())
}

// awaitReturn waits until all methods of the server have returned.
func awaitReturn(t *testing.T, methods ...string) {
	t.Helper()
	stacks := make([]byte, 4<<20)
	require.Eventually(t, func() bool {
		all := string(stacks[:runtime.Stack(stacks, true)])
		return !slices.ContainsFunc(methods, func(m string) bool { return strings.Contains(all, m) })
	}, patience, time.Millisecond, "the server's side goes on")
}

//stepmux:faults service | A follower that does not read blocks the job
func TestReaderThatDoesNotReadHoldsUpNoJob(t *testing.T) {
	h := newHarness(t)
	conn := h.dial()
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	h.run(script("1", "echo; "+wait+"; head -c 20000000 /dev/zero"))
	stream, err := pb.NewStepRunnerClient(conn).FollowIO(ctx, &pb.FollowIORequest{Id: "1"})
	require.NoError(t, err)
	_, err = stream.Recv() // the call is at work; nothing more of it is read
	require.NoError(t, err)
	open()
	last := h.end("1")
	require.Equal(t, succeeded, last.GetStatus())
	require.EqualValues(t, 20000001, last.GetStdoutLen())
}

//stepmux:faults input | More output than is kept
//stepmux:with remote/job.TestLimitsAreThereUnlessTheyAreChanged
func TestOutputLimitIsSaidAndTheJobGoesOn(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.OutputLimit = 1_000_000 })
	h.run(script("1", `head -c 5000000 /dev/zero | tr '\0' x; echo END >&2`))
	require.Equal(t, succeeded, h.end("1").GetStatus())
	o := h.output("1") // nobody read it before
	require.LessOrEqual(t, len(o.stdout()), 1_000_200)
	require.Contains(t, o.stdout()[1_000_000:], "output limit")
	require.Equal(t, "END\n", o.stderr())
}

// Symptom: a client that had followed up to the limit got no more output.
//
//stepmux:faults service | A client that reads all output as it comes loses what is beyond the limit of the log
//stepmux:with remote/job/joblog.TestBytesThatWereReadMakeRoomForMore
//stepmux:with remote/job/joblog.TestReadThatRoomIsMadeUnderReturnsAnError
func TestClientThatKeepsUpGetsMoreThanTheLimit(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.OutputLimit = 1_000_000 })
	going := t.TempDir()
	h.run(script("1", "for i in 1 2 3 4 5 6 7 8 9; do head -c 500000 /dev/zero | tr '\\0' $i; "+
		"while [ ! -e "+going+"/$i ]; do sleep 0.01; done; done"))
	stream, err := h.FollowIO(t.Context(), &pb.FollowIORequest{Id: "1"})
	require.NoError(t, err)
	total := 0
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.EqualValues(t, total, piece.GetOffset())
		for i, c := range piece.GetStream() {
			if want := byte('1' + (total+i)/500000); c != want { // millions of calls of require take seconds
				require.Equal(t, want, c)
			}
		}
		if total += len(piece.GetStream()); total%500000 == 0 {
			require.NoError(t, os.WriteFile(filepath.Join(going, strconv.Itoa(total/500000)), nil, 0o600))
		}
	}
	require.Equal(t, 4_500_000, total)
	require.Equal(t, succeeded, h.end("1").GetStatus())
	late := h.followIO(t.Context(), &pb.FollowIORequest{Id: "1"}, 0)
	require.Equal(t, codes.OutOfRange, status.Code(late.err))
}

func TestClientThatGoesAwayDoesNotCancelTheJob(t *testing.T) {
	h := newHarness(t)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	h.run(script("1", "echo before; "+wait+"; echo survived"))
	conn := h.dial()
	stream, err := pb.NewStepRunnerClient(conn).FollowIO(t.Context(), &pb.FollowIORequest{Id: "1"})
	require.NoError(t, err)
	piece, err := stream.Recv()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	open()
	rest := h.followIO(t.Context(), &pb.FollowIORequest{Id: "1", ReadStdout: int32(len(piece.GetStream()))}, 0)
	require.NoError(t, rest.err)
	require.Equal(t, "before\nsurvived\n", string(piece.GetStream())+rest.stdout())
}

func TestPanicInACallIsTheFailureOfThatCall(t *testing.T) {
	_, err := recoverUnary(t.Context(), nil, nil, func(context.Context, any) (any, error) { panic("geheim") })
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "geheim")
	err = recoverStream(nil, nil, nil, func(any, grpc.ServerStream) error { panic("geheim") })
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "geheim")
}

// outputs runs the script of a step that may write outputs to the file $1, in a job that asks for them. It returns them
// as they come with a brief answer.
func (h *harness) outputs(id, script string) *pb.Outputs {
	h.t.Helper()
	req := yaml(id, "- {name: other, script: \"true\"}\n- {name: gives, step: ./gives}\n")
	req.WorkDir, req.Job.Outputs = h.t.TempDir(), true
	require.NoError(h.t, os.WriteFile(filepath.Join(req.GetWorkDir(), "give.sh"), []byte(script), 0o600))
	require.NoError(h.t, os.Mkdir(filepath.Join(req.GetWorkDir(), "gives"), 0o700))
	require.NoError(h.t, os.WriteFile(filepath.Join(req.GetWorkDir(), "gives/step.yml"), []byte(`
spec: {outputs: {plain: {type: string}, secret: {type: string, sensitive: true}}}
---
exec: {command: [sh, give.sh, "${{ output_file }}"]}
`), 0o600))
	h.run(req)
	stream, err := h.Follow(h.t.Context(), &pb.FollowRequest{Id: id, Brief: true})
	require.NoError(h.t, err)
	for {
		msg, err := stream.Recv()
		require.NoError(h.t, err)
		if msg.GetJob() != nil {
			return msg.GetOutputs()
		}
		require.Nil(h.t, msg.GetOutputs())
	}
}

func TestOutputsOfTheLastStepComeIfTheJobAsksForThem(t *testing.T) {
	h := newHarness(t)
	for _, code := range []string{"0", "4"} {
		got := map[string]string{}
		given := h.outputs("ends-"+code,
			`printf '{"name":"plain","value":"a"}\n{"name":"secret","value":"geheim"}\n' >$1; exit `+code)
		for _, o := range given.GetGiven() {
			got[o.GetName()] = o.GetValue() + map[bool]string{true: "masked"}[o.GetMasked()]
		}
		require.Equal(t, map[string]string{"plain": "a", "secret": "masked"}, got, code)
	}
	large := h.outputs("large", `printf '{"name":"plain","value":"%01100000d"}\n{"name":"secret","value":"x"}\n' 0 >$1`)
	require.Empty(t, large.GetGiven())
	require.Contains(t, large.GetRefused(), "outputs of more than 1048576 bytes together")

	h.run(yaml("unasked", "- script: \"true\"\n"))
	_, last := h.follow("unasked")
	require.Nil(t, last.GetOutputs())
}
