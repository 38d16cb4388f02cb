package manager_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// requireSettled drains and undrains a VM at the same time, often, by any of managers. Whatever came last in the store
// holds in all of them.
func requireSettled(t *testing.T, times int, managers ...*running) {
	t.Helper()
	for i := range times {
		var both errgroup.Group
		both.Go(func() error {
			_, err := managers[i%len(managers)].Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
			return err
		})
		both.Go(func() error {
			_, err := managers[(i+1)%len(managers)].Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1"}})
			return err
		})
		require.NoError(t, both.Wait())
		for _, m := range managers {
			require.Eventually(t, func() bool { return m.m.Settled(t, "vm-1") }, sshtest.Bound, time.Millisecond,
				"after %d times", i)
		}
	}
}

// A drain that was overtaken by an undrain took the VM out for good, although its manager kept no drain of it.
func TestADrainAndAnUndrainAtOnceLeaveWhatIsKept(t *testing.T) {
	t.Parallel()
	requireSettled(t, 50, newFleet(t).start(t))
}

func TestADrainAndAnUndrainByTwoManagersLeaveWhatIsKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	requireSettled(t, 50, c.member(t, c.nats), c.member(t, c.nats))
}

// A VM that was not in the inventory when the manager started took builds once it was.
func TestADrainHoldsForAVMThatComesBackAfterTheStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.more = f.vm
	m := f.start(t)
	for _, id := range []string{"vm-1", "vm-2"} {
		_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{id}})
		require.NoError(t, err)
	}
	m.stop()
	var group *instance.Group
	var all []instance.Instance
	f.change = func(cfg *manager.Config) {
		group, all = cfg.Group, cfg.Group.Instances()
		require.NoError(t, group.Update(all[:1]))
	}
	m = f.start(t)
	require.NoError(t, group.Update(all))
	requireStates(t, m, "draining")

	require.NoError(t, group.Update(all[:1]))
	_, err := m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1", "vm-2"}})
	require.NoError(t, err, "also while it is away")
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-2"}})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.NoError(t, group.Update(all))
	requireStates(t, m, "ready")
}

// If NATS could not be reached at the end of a drain's time, the VM stayed out until somebody let it in.
func TestADrainWhoseTimeEndsWhileNATSIsAwayEndsLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	proxy := sshtest.Proxy(t, c.nats)
	m := c.member(t, proxy.Addr())
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}, For: durationpb.New(2 * time.Second)})
	require.NoError(t, err)
	end := time.Now().Add(3 * time.Second)
	require.Eventually(t, func() bool {
		proxy.Cut()
		return time.Now().After(end)
	}, sshtest.Bound, time.Millisecond)
	requireStates(t, m, "ready")
}

// stepmux ps told only of those that the manager had taken from its queue.
func TestTheStatusCountsAllBuildsThatWait(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	m.await(m.submit("echo begun; exec sleep 1000"), "begun\n")
	for range 20 {
		m.submit("true")
	}
	go func() { _, _ = m.reserve(t.Context(), &pb.ReserveRequest{}) }() // until the manager ends
	require.Eventually(t, func() bool {
		resp, err := m.Status(t.Context(), &pb.StatusRequest{})
		require.NoError(t, err)
		var s control.Status
		require.NoError(t, json.Unmarshal(resp.GetJson(), &s))
		return s.Waiting == 21
	}, sshtest.Bound, time.Millisecond)
}
