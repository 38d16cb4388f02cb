package manager_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux/login"
)

// Builds were taken from the queue before they had a slot, so a lease waited behind them.
func TestABuildLeavesTheQueueWhenItHasASlot(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	wait, open := gate(t)
	defer open()
	m.await(m.submit("echo on\n"+wait), "on\n")
	var ids []string
	for range 10 {
		ids = append(ids, m.submit("true"))
	}
	leased := make(chan string, 1)
	go func() {
		lease, err := m.reserve(t.Context(), &pb.ReserveRequest{})
		if err == nil {
			leased <- lease.GetLease()
		}
	}()
	require.Eventually(t, func() bool { return len(m.m.Waiting()) > 0 }, sshtest.Bound, time.Millisecond)
	require.Len(t, m.m.Waiting(), 1, "the lease")
	require.Equal(t, 1, m.m.Taken(), "the build that runs")
	open()
	lease := <-leased
	list, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued})
	require.NoError(t, err)
	require.EqualValues(t, len(ids), list.GetQueued())
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: lease})
	require.NoError(t, err)
	for _, id := range ids {
		_, b := m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason())
	}
}

// Symptom: a request that came when the last slot had gone, as by a drain, was given back to the queue, which forgot it
// when earlier requests left. Its build never ran.
func TestABuildThatCameWhenTheLastSlotHadGoneRunsOnceThereIsOne(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	vms := []string{"vm-1"}
	for range 3 {
		m.wait(m.submit("true"), 0)
		_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: vms})
		require.NoError(t, err)
		id := m.submit("true") // for the pull that has begun before the drain
		require.Eventually(t, func() bool { return m.m.Requests(t) == 1 }, sshtest.Bound, time.Millisecond, "that of id")
		_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: vms})
		require.NoError(t, err)
		_, b := m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason())
	}
}

func TestBuildsThatNoVMCanTakeEndWithTheReason(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) {
		all := cfg.Group.Instances()
		all[0].SSH.HostKeys = login.PinnedHostKeys(sshtest.InProcess(t, embeddedvm.Config{}).HostKey)
		require.NoError(t, cfg.Group.Update(all))
	}
	m := f.start(t)
	var ids []string
	for range 20 {
		ids = append(ids, m.submit("true"))
	}
	for _, id := range ids {
		_, b := m.wait(id, 0)
		require.Equal(t, string(instance.RunnerSystemFailure), b.GetResult().GetReason())
		require.Contains(t, b.GetResult().GetMessage(), "host key")
	}
}

func TestBuildsThatWaitForAVMAreBoundedAndHoldUpNoOthersBefore(t *testing.T) {
	t.Parallel()
	const more = 20
	f := newFleet(t)
	f.more, f.change = f.vm, labelled
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	m.stop()
	j := job("true")
	j.Labels = map[string]string{"k": "v"}
	text, err := proto.Marshal(j)
	require.NoError(t, err)
	manager.FillQueue(t, f.dir, text, manager.MaxHeld+more)

	m = f.start(t)
	require.Eventually(t, func() bool { return len(m.m.Waiting()) == manager.MaxHeld }, sshtest.Bound, time.Millisecond)
	waiting := m.m.Waiting()
	other := m.submit("true")
	cancel := func(ids []string) {
		for _, id := range ids {
			_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
			require.NoError(t, err)
		}
	}
	cancel(waiting[:more-1])
	require.Eventually(t, func() bool {
		now := m.m.Waiting()
		return len(now) == manager.MaxHeld && now[0] == waiting[more-1]
	}, sshtest.Bound, time.Millisecond)
	b, err := m.Get(t.Context(), &pb.GetRequest{Id: other})
	require.NoError(t, err)
	require.Equal(t, pb.Build_queued, b.GetPhase(), "one of those before it is in the queue, too")
	cancel(waiting[more-1 : more+1])
	_, b = m.wait(other, 0)
	require.Empty(t, b.GetResult().GetReason())
}

// A manager alone finds its builds as soon as it starts: they linger for a time only, and the queue hands them out when
// there is room.
//
//stepmux:faults users | A build of the manager before is not resumed, because many builds that wait for other VMs are
//stepmux:more before it
func TestABuildBehindManyThatWaitForAVMIsResumed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.more, f.change = f.vm, labelled
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	const waiting = 100
	for range waiting {
		m.submitLabelled("true")
	}
	wait, open := gate(t)
	defer open()
	id := m.submit("echo on\n" + wait + "\necho off")
	m.await(id, "on\n")
	require.Len(t, m.m.Waiting(), waiting)
	_, err = m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-2"}})
	require.NoError(t, err)
	m.stop()

	m = f.start(t)
	open()
	text, b := m.wait(id, 0)
	require.Equal(t, "on\noff\n", text)
	require.Empty(t, b.GetResult().GetReason())
	require.Empty(t, m.m.Waiting(), "no VM has room")
}

// All builds that wait are counted, although only those that were taken from the queue are known to wait for the VM.
//
//stepmux:faults users | ps does not say that all VMs are quarantined, as most builds are still in the queue
func TestTheStatusTellsThatAllVMsAreQuarantined(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nowhere := listener.Addr().String()
	require.NoError(t, listener.Close())
	f := newFleet(t)
	f.provide = func(cfg *instance.Config) { cfg.ConnectWait = time.Hour }
	f.change = func(cfg *manager.Config) {
		all := cfg.Group.Instances()
		all[0].Addr = nowhere
		require.NoError(t, cfg.Group.Update(all))
	}
	m := f.start(t)
	const n = 5
	for range n {
		m.submit("true")
	}
	text := fmt.Sprintf("%d builds waiting for a slot, %d of them because all VMs that fit are aside", n, n)
	require.Eventually(t, func() bool {
		resp, err := m.Status(t.Context(), &pb.StatusRequest{})
		require.NoError(t, err)
		var s control.Status
		require.NoError(t, json.Unmarshal(resp.GetJson(), &s))
		return strings.Contains(textOf(t, s), text)
	}, sshtest.Bound, 10*time.Millisecond)
	require.LessOrEqual(t, m.m.Taken(), 2)
}

// textOf returns the status as ps shows it.
func textOf(t *testing.T, s control.Status) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, s.WriteText(&b, time.Now(), false))
	return b.String()
}
