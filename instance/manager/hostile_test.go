package manager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

func TestHugeRequestsAreRefusedAndCostNothing(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	_, err := m.Submit(t.Context(), &pb.SubmitRequest{Job: &pb.Job{Steps: make([]byte, 64<<20)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	_, err = m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}, Note: strings.Repeat("x", 2<<10)})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	text, _ := m.wait(m.submit("echo x"), 0)
	require.Equal(t, "x\n", text)
}

// A client that follows a log and does not read holds up neither the build, nor others, nor the manager's end.
func TestAClientThatNeverReadsHoldsUpNothing(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	id := m.submit("head -c 20000000 /dev/zero | tr '\\0' x")
	_, err := m.Follow(t.Context(), &pb.FollowRequest{Id: id, Follow: true})
	require.NoError(t, err)
	text, b := m.wait(id, 0)
	require.Len(t, text, 20_000_000)
	require.Empty(t, b.GetResult().GetReason())
	m.stop()
}

func TestTwoManagersWithOneVMDoNotMeet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	other := newFleetOn(t, f.vm)
	a, b := f.start(t), other.start(t)
	wait, open := gate(t)
	one, two := a.submit("echo a; "+wait), b.submit("echo b; "+wait)
	require.NotEqual(t, one, two)
	a.await(one, "a\n")
	b.await(two, "b\n")
	a.stop()
	open()
	text, end := b.wait(two, 0)
	require.Equal(t, "b\n", text)
	require.Empty(t, end.GetResult().GetReason(), "the end of one manager is not the other's")
	text, _ = f.start(t).wait(one, 0)
	require.Equal(t, "a\n", text)
}

func TestAReadOnlyStateIsAClearError(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	id := m.submit("echo x")
	m.wait(id, 0)
	m.stop()
	if os.Geteuid() == 0 {
		require.NoError(t, unix.Mount(f.dir, f.dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(f.dir, unix.MNT_DETACH)) })
		require.NoError(t, unix.Mount("", f.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	} else {
		store := filepath.Join(f.dir, "jetstream", "jetstream")
		require.NoError(t, os.Chmod(store, 0o500))
		t.Cleanup(func() { require.NoError(t, os.Chmod(store, 0o700)) })
	}
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "state directory "+f.dir)
	require.ErrorContains(t, err, "is not writable")
}

// The clock of the machine was set back by a day while a build with a timeout ran: its time is counted from the restart
// of the manager on, not from tomorrow.
func TestAClockThatJumpsBackDoesNotLengthenABuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	timed := job("echo begun; exec sleep 1000")
	timed.Timeout = durationpb.New(2 * time.Second)
	resp, err := m.Submit(t.Context(), &pb.SubmitRequest{Job: timed})
	require.NoError(t, err)
	m.await(resp.GetId(), "begun\n")
	m.m.SetStarted(t, resp.GetId(), time.Now().Add(24*time.Hour))
	m.stop()
	_, b := f.start(t).wait(resp.GetId(), 0)
	require.Equal(t, "job_execution_timeout", b.GetResult().GetReason())
}
