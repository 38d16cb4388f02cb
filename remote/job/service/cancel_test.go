package service

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

//stepmux:faults service | A cancelled job has no time to clean up; only its first process is killed, and the children
//stepmux:more live on and hold the pipes
//stepmux:with remote/job/service.TestCancelEndsAllThatTheJobStarted
//stepmux:with remote/job/service.TestManagersCancelKeepsTheJobAndCloseRemovesIt
func TestCancelSendsSIGTERMFirst(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", `- script: "trap 'echo cleanup; exit 0' TERM; echo ready; sleep 4732 & wait"`))
	h.awaitOutput("1", 6)
	h.cancel("1")
	last := h.end("1")
	require.Equal(t, pb.JobState_cancelled, last.GetStatus())
	require.Equal(t, "the job was cancelled", last.GetMessage())
	require.Equal(t, "ready\ncleanup\n", h.output("1").stdout())
}

func TestCancelKillsAfterTheGraceTheRequestNamed(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.Grace = time.Hour })
	req := yaml("1", `- script: "trap '' TERM; echo ready; sleep 4732; sleep 4732"`)
	req.Job.Grace = durationpb.New(50 * time.Millisecond)
	h.run(req)
	h.awaitOutput("1", 6)
	h.cancel("1")
	require.Equal(t, pb.JobState_cancelled, h.end("1").GetStatus())
}

func TestCancelByForceKillsAtOnce(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", `- script: "trap '' TERM; echo ready; sleep 4732; sleep 4732"`)
	req.Job.Grace = durationpb.New(time.Hour)
	h.run(req)
	h.awaitOutput("1", 6)
	_, err := h.Cancel(t.Context(), &pb.CancelRequest{Id: "1", Force: true})
	require.NoError(t, err)
	require.Equal(t, pb.JobState_cancelled, h.end("1").GetStatus())
}

func TestCancelEndsAllThatTheJobStarted(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", `
- script: |
    sleep 4733 & a=$!
    (sleep 4733 & echo $! > b) &
    (setsid sh -c 'echo $$ > c; exec sleep 4733' >/dev/null 2>&1 &)
    while [ ! -s b ] || [ ! -s c ]; do sleep 0.01; done
    echo $a $(cat b c) .
    sleep 4733
`))
	for !strings.Contains(h.awaitOutput("1", 5), ".") {
	}
	pids := strings.Fields(h.awaitOutput("1", 5))
	h.cancel("1")
	require.Equal(t, pb.JobState_cancelled, h.end("1").GetStatus())
	require.Len(t, pids, 4)
	for _, text := range pids[:3] {
		pid, err := strconv.Atoi(text)
		require.NoError(t, err)
		require.ErrorIs(t, unix.Kill(pid, 0), unix.ESRCH)
	}
}

func TestCancelIsIdempotentAndIgnoresAnUnknownJob(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- script: echo ready; sleep 4734\n"))
	h.awaitOutput("1", 6)
	h.cancel("1")
	h.cancel("1")
	h.cancel("nope")
	h.cancel("../../etc")
}

func TestCancelRemovesAJobThatHasEnded(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", "echo"))
	h.end("1")
	require.Len(t, h.list(), 1)
	h.cancel("1")
	require.Empty(t, h.list())
	require.Equal(t, codes.NotFound, status.Code(h.followIO(t.Context(), &pb.FollowIORequest{Id: "1"}, 0).err))
}

func TestCancelSkipsTheRestExceptForStepsThatAlwaysRun(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", `
- {name: a, script: echo ready; sleep 4735}
- {name: b, script: echo not-run}
- {name: c, script: echo cleanup-ran, when: always}
`))
	h.awaitOutput("1", 6)
	h.cancel("1")
	changes, last := h.follow("1")
	require.Equal(t, []string{"a running", "a cancelled", "b skipped", "c running", "c success"}, changes)
	require.Equal(t, pb.JobState_cancelled, last.GetJob().GetStatus())
	require.Equal(t, pb.StepResult_cancelled, last.GetResult().GetStatus())
	require.Equal(t, "ready\ncleanup-ran\n", h.output("1").stdout())
}

//stepmux:faults engine | A background process that keeps the output open keeps the job from ending
//stepmux:with remote/proc.TestWaitDoesNotHangOnABackgroundProcessThatHoldsTheOutput
//stepmux:with remote/step/engine.TestBackgroundProcessLivesUntilTheJobEnds
func TestBackgroundProcessDoesNotHoldTheStep(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: a, script: sleep 4736 & echo done}\n- {name: b, script: echo next}\n"))
	require.Equal(t, "done\nnext\n", h.output("1").stdout())
	require.Equal(t, succeeded, h.end("1").GetStatus())
}

func TestTimeoutFailsTheJob(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", "- script: sleep 4737\n")
	req.Job.Timeout = durationpb.New(50 * time.Millisecond)
	h.run(req)
	last := h.end("1")
	require.Equal(t, pb.JobState_failed, last.GetStatus())
	require.True(t, last.GetTimedOut())
	require.Contains(t, last.GetMessage(), "timeout")
	require.Zero(t, last.GetExitCode())
}

func TestListShowsJobsThatRunAndThatHaveEnded(t *testing.T) {
	h := newHarness(t)
	h.run(script("ended", "echo x"))
	h.end("ended")
	h.run(script("runs", "echo ready; sleep 4738"))
	h.awaitOutput("runs", 6)
	jobs := h.list()
	require.Len(t, jobs, 2)
	require.Equal(t, "ended", jobs[0].GetId())
	require.Equal(t, succeeded, jobs[0].GetStatus())
	require.NotNil(t, jobs[0].GetFinishedTime())
	require.Equal(t, "runs", jobs[1].GetId())
	require.Equal(t, pb.JobState_running, jobs[1].GetStatus())
	require.Nil(t, jobs[1].GetFinishedTime())
	require.EqualValues(t, 6, jobs[1].GetStdoutLen())
	require.Equal(t, "runs", h.list("runs", "nope")[0].GetId())
	require.Len(t, h.list("runs", "nope"), 1)
}
