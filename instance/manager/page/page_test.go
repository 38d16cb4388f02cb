package page

import (
	"context"
	"html/template"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQuantilesAreOfTheTimesInTheirWindow(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var all []*pb.Build
	for i := range 100 {
		began := now.Add(-time.Duration(i) * time.Minute)
		all = append(all, &pb.Build{
			Submitted: timestamppb.New(began.Add(-time.Duration(i+1) * time.Second)), Started: timestamppb.New(began),
		})
	}
	all[0].Connect, all[1].FirstOutput = durationpb.New(time.Second), durationpb.New(2*time.Second)
	require.Equal(t, []times{
		{"hour", "wait", 61, 31, 55, 61}, {"hour", "connect", 1, 1, 1, 1}, {"hour", "first_output", 1, 2, 2, 2},
	}, timesOf("hour", time.Hour, append(all, &pb.Build{}), now))
	for _, none := range timesOf("hour", time.Hour, nil, now) {
		require.Equal(t, times{Window: "hour", Part: none.Part}, none)
	}
}

func TestFailuresAreGroupedByTheirCause(t *testing.T) {
	failed := func(id, vm, reason, message string, code int32) *pb.Build {
		return &pb.Build{Id: id, Instance: vm, Phase: pb.Build_ended, Result: &pb.Result{
			Reason: reason, Message: message, ExitCode: code,
		}}
	}
	f := failuresOf([]*pb.Build{
		failed("1-ab", "vm-1", "runner_system_failure", "connect to vm-1 at 10.0.0.1:22: refused", 0),
		failed("2-ab", "vm-2", "runner_system_failure", "connect to vm-2 at 10.0.0.2:22: refused", 0),
		failed("3-ab", "vm-2", "script_failure", "step x", 7),
		failed("4-ab", "vm-2", "job_canceled", "asked", 0), failed("5-ab", "vm-2", "", "", 0),
		failed("6-ab", "vm-2", "script_failure", "step y: read output file", 0),
	})
	require.Equal(t, 6, f.Of)
	require.Len(t, f.System, 1)
	require.Equal(t, 2, f.System[0].Count)
	require.Equal(t, map[string]int{"vm-1": 1, "vm-2": 1}, f.System[0].VMs)
	require.Contains(t, f.System[0].Cause, "refused")
	require.Equal(t, "exit code 7", f.Scripts[0].Cause)
	require.Equal(t, "step y: read output file", f.Scripts[1].Cause, "it was called exit code 0")
	require.Len(t, f.Others, 1)
}

// The page said "Left on the VM: on vm-0: ..." of a build that is on another VM now.
func TestThePageOfABuildTellsWhatMayBeLeftAndWhere(t *testing.T) {
	var text strings.Builder
	layout := template.Must(template.New("").Funcs(functions).Parse(pageText))
	build := pb.BuildJSON{ID: "1-a", Phase: "ended", Instance: "vm-1", Left: []string{"on vm-0: unknown"}}
	require.NoError(t, layout.ExecuteTemplate(&text, "build-live", map[string]any{"Data": buildData{Build: build}}))
	require.Contains(t, text.String(), "<dt>May be left</dt><dd>on vm-0: unknown<br>")
}

// lateManager does not answer before told is closed.
type lateManager struct {
	pb.ManagerClient
	asked, told chan struct{}
}

func (m *lateManager) Status(context.Context, *pb.StatusRequest, ...grpc.CallOption) (*pb.StatusResponse, error) {
	m.asked <- struct{}{}
	<-m.told
	return nil, status.Error(codes.Unavailable, "NATS: no quorum")
}

// While NATS could not be reached, the readers of pages asked one after the other, each once the one before it had its
// answer. The last of many were told of a timeout after half a minute, and not why.
func TestReadersOfAPageDoNotWaitForEachOther(t *testing.T) {
	m := &lateManager{asked: make(chan struct{}, 2), told: make(chan struct{})}
	f := facts{manager: m}
	failed := make(chan error, 2)
	read := func(ctx context.Context) {
		_, _, err := f.now(ctx)
		failed <- err
	}
	go read(t.Context())
	<-m.asked
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	go read(ctx)
	require.Eventually(t, func() bool { return len(failed) == 1 }, 30*time.Second, time.Millisecond)
	require.Equal(t, codes.DeadlineExceeded, status.Code(<-failed))
	go read(t.Context())
	close(m.told)
	for range 2 {
		require.Equal(t, codes.Unavailable, status.Code(<-failed))
	}
}

// FuzzLogText holds that a log in any pieces is the same log, that its positions are those of line ends, and that
// nothing in it is obeyed.
func FuzzLogText(f *testing.F) {
	f.Add([]byte("one\ntwo\x1b[31m\r\nthree"), 3)
	f.Add([]byte("\n\n\xff\xfe"), 1)
	f.Fuzz(func(t *testing.T, log []byte, size int) {
		size = max(size, 1)
		var whole, pieces logText
		want := string(whole.take(log, 0))
		got := ""
		for at := 0; at < len(log); at += size {
			got += string(pieces.take(log[at:min(at+size, len(log))], int64(at)))
			if pieces.shown > 0 && log[pieces.shown-1] != '\n' {
				require.GreaterOrEqual(t, int(pieces.shown), maxLine)
			}
		}
		require.Equal(t, want, got)
		require.Equal(t, string(whole.end()), string(pieces.end()))
		require.EqualValues(t, len(log), pieces.shown)
		require.False(t, strings.ContainsAny(got, "\x1b\r\a"))
	})
}
