package manager_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// labelled gives the first VM a label and one slot.
func labelled(cfg *manager.Config) {
	all := cfg.Group.Instances()
	all[0].Labels, all[0].Capacity = map[string]string{"k": "v"}, 1
	if err := cfg.Group.Update(all); err != nil {
		panic(err)
	}
}

// submitLabelled queues a build for the VM with that label.
func (r *running) submitLabelled(script string) string {
	r.t.Helper()
	j := job(script)
	j.Labels = map[string]string{"k": "v"}
	return r.submitJob(j)
}

// awaitHeld waits until a manager has a number of VMs.
func (r *running) awaitHeld(n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.m.Holds() == n }, sshtest.Bound, 10*time.Millisecond)
}

// crowded starts a manager of a cluster with a build of script that waits for a VM. open ends the build that has it.
func (c *cluster) crowded(t *testing.T, nats, script string) (m *running, waits string, open func()) {
	t.Helper()
	m = c.memberWith(t, nats, labelled)
	m.awaitHeld(2)
	wait, open := gate(t)
	first := m.submitLabelled("echo on\n" + wait)
	m.await(first, "on\n")
	waits = m.submitLabelled(script)
	require.Eventually(t, func() bool { return len(m.m.Waiting()) > 0 }, sshtest.Bound, 10*time.Millisecond)
	return m, waits, open
}

// A build that waited in one manager for a VM went on waiting there when the VM became another manager's.
func TestABuildThatWaitsForAVMGoesWithIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, waits, open := c.crowded(t, c.nats, "echo on")
	wait, openOthers := gate(t)
	defer openOthers()
	for range c.capacity {
		a.await(a.submit("echo on\n"+wait), "on\n") // on the other VM, so that a gives up this one
	}
	b := c.memberWith(t, c.nats, labelled)
	a.awaitHeld(1)
	b.awaitHeld(1)
	open()
	text, end := b.wait(waits, 0)
	require.Equal(t, "on\n", text)
	require.Empty(t, end.GetResult().GetReason())
}

// A manager that was cut off went on with its builds that waited, which another manager ran meanwhile.
func TestAManagerThatWasCutOffForgetsBuildsThatWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	proxy := sshtest.Proxy(t, c.nats)
	wait, openSecond := gate(t)
	a, waits, open := c.crowded(t, proxy.Addr(), "echo on\n"+wait)
	b := c.memberWith(t, c.nats, labelled)
	require.Eventually(t, func() bool {
		proxy.Cut()
		return b.m.Holds() == 2
	}, sshtest.Bound, time.Millisecond)
	open()
	b.await(waits, "on\n")
	a.awaitHeld(1)
	openSecond()
	for _, m := range []*running{b, a} {
		text, end := m.wait(waits, 0)
		require.Equal(t, "on\n", text)
		require.Empty(t, end.GetResult().GetReason())
	}
}

// A build went on although it was canceled, because its manager could not be told at the time.
func TestACancelReachesAManagerThatWasAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	proxy := sshtest.Proxy(t, c.nats)
	a := c.member(t, proxy.Addr())
	id := a.submit("echo on; exec sleep 1000")
	a.await(id, "on\n")
	b := c.member(t, c.nats)
	canceled := make(chan error, 1)
	go func() {
		_, err := b.Cancel(t.Context(), &pb.CancelRequest{Id: id})
		canceled <- err
	}()
	require.Eventually(t, func() bool {
		proxy.Cut()
		return len(canceled) == 1
	}, sshtest.Bound, time.Millisecond)
	require.NoError(t, <-canceled)
	_, end := b.wait(id, 0)
	require.Equal(t, "job_canceled", end.GetResult().GetReason())
}

// A manager that had asked an empty queue for a build got the next one also when its last slot had gone meanwhile, to a
// lease, an SSH login or a drain. The build waited there beside a free VM of another manager.
func TestABuildDoesNotGoToAManagerWhoseLastSlotHasGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.capacity = 1
	a, b := c.member(t, c.nats), c.member(t, c.nats)
	a.awaitHeld(1)
	b.awaitHeld(1)
	a.wait(a.submit("true"), 0)
	b.wait(b.submit("true"), 0)
	_, err := a.reserve(t.Context(), &pb.ReserveRequest{})
	require.NoError(t, err)
	for range 4 { // of two that ask, each gets some
		id := b.submit("true")
		require.Eventually(t, func() bool {
			now, err := b.Get(t.Context(), &pb.GetRequest{Id: id})
			return err == nil && now.GetPhase() == pb.Build_ended
		}, sshtest.Bound, 10*time.Millisecond)
	}
}

// divided starts two managers of four VMs. Each has a VM with a label and one slot, and one without the label. A build
// runs on that of a, vm-1, until open is called. vm-1 takes no more than uses builds, unless that is 0.
func (c *cluster) divided(t *testing.T, uses int) (a, b *running, first string, open func()) {
	t.Helper()
	four := func(cfg *manager.Config) {
		all := cfg.Group.Instances()
		all = append(all, all...)
		for i := range all {
			all[i].ID = fmt.Sprintf("vm-%d", i+1)
			if i < 2 {
				all[i].Labels, all[i].Capacity = map[string]string{"k": "v"}, 1
			}
		}
		all[0].MaxUses = uses
		require.NoError(t, cfg.Group.Update(all))
	}
	a = c.memberWith(t, c.nats, four)
	a.awaitHeld(4)
	wait, open := gate(t)
	first = a.submitLabelled("echo on\n" + wait)
	a.await(first, "on\n")
	b = c.memberWith(t, c.nats, four) // a gives up VMs without builds
	a.awaitHeld(2)
	b.awaitHeld(2)
	return a, b, first, open
}

// A build with labels went to a manager whose only VM with them was used up (max_uses), and waited there.
func TestABuildDoesNotWaitForAVMThatIsUsedUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b, first, open := c.divided(t, 1)
	open()
	a.wait(first, 0)
	wait, openSecond := gate(t)
	defer openSecond()
	b.await(b.submitLabelled("echo on\n"+wait), "on\n")
	for range 4 { // of two that ask, each gets some
		b.submitLabelled("true")
	}
	require.Eventually(t, func() bool { return len(b.m.Waiting()) == 4 }, sshtest.Bound, 10*time.Millisecond)
	require.Empty(t, a.m.Waiting())
}

// A build with labels stayed with the manager that had taken it from the queue while its VM was busy, beside a free VM
// with these labels of another manager.
func TestABuildThatWaitsForAVMGoesToAnotherManagerWithRoom(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, _, _, open := c.divided(t, 0)
	defer open()
	for range 4 { // of two that ask, each gets some
		text, end := a.wait(a.submitLabelled("echo sooner"), 0)
		require.Equal(t, "sooner\n", text)
		require.Equal(t, "vm-2", end.GetInstance())
	}
}

// A build that waited in a manager for a VM waited there until the undrain when the VM was drained, also if another
// manager had such a VM.
func TestABuildThatWaitsForAVMThatIsDrainedIsGivenBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m, waits, open := c.crowded(t, c.nats, "echo on")
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(m.m.Waiting()) == 0 }, sshtest.Bound, 10*time.Millisecond)
	open()
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	text, end := m.wait(waits, 0)
	require.Equal(t, "on\n", text)
	require.Empty(t, end.GetResult().GetReason())
}

// The record of a lease that ended while NATS could not be reached stayed. When its manager was started anew, it held a
// slot for that lease.
func TestALeaseThatEndsWithoutNATSLeavesNoRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	proxy := sshtest.Proxy(t, c.nats)
	m := c.member(t, proxy.Addr())
	_, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-one"})
	require.NoError(t, err)
	require.True(t, m.m.Keeps(t, "lease-one"))
	require.Eventually(t, func() bool {
		proxy.Cut()
		return m.m.Holds() == 0
	}, sshtest.Bound, time.Millisecond, "the manager leaves its VMs, and ends its leases")
	require.Eventually(t, func() bool { return !m.m.Keeps(t, "lease-one") }, sshtest.Bound, 10*time.Millisecond)
}

// A lease for a VM of another manager waited without a word. Then it was refused as one that no VM fits, so the driver
// of the custom executor said that the job's script had failed, and GitLab Runner did not try again.
func TestALeaseForAVMOfAnotherManagerIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.member(t, c.nats), c.member(t, c.nats)
	a.awaitHeld(1)
	b.awaitHeld(1)
	refused := 0
	for _, vm := range []string{"vm-1", "vm-2"} {
		require.Eventually(t, func() bool { // a knows of the other's claim soon
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := a.reserve(ctx, &pb.ReserveRequest{Lease: "lease-" + vm, Instance: vm})
			if status.Code(err) != codes.ResourceExhausted {
				return err == nil
			}
			refused++
			return assert.ErrorContains(t, err, "another manager of the cluster")
		}, sshtest.Bound, 10*time.Millisecond)
	}
	require.Equal(t, 1, refused)
}

// A lease that waited for a VM, as that of an SSH login, went on waiting when the VM became another manager's.
func TestALeaseThatWaitsForAVMIsRefusedWhenTheVMGoes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, _, open := c.crowded(t, c.nats, "echo on")
	defer open()
	wait, openOthers := gate(t)
	defer openOthers()
	for range c.capacity {
		a.await(a.submit("echo on\n"+wait), "on\n") // on the other VM, so that a gives up this one
	}
	refused := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
		defer cancel()
		_, err := a.reserve(ctx, &pb.ReserveRequest{Labels: map[string]string{"k": "v"}})
		refused <- err
	}()
	require.Eventually(t, func() bool { return len(a.m.Waiting()) > 1 }, sshtest.Bound, 10*time.Millisecond)
	c.memberWith(t, c.nats, labelled).awaitHeld(1)
	err := <-refused
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "another manager of the cluster")
}

// A build that was canceled just when it was taken from the queue kept its place in the queue for a slot.
func TestACancelMeetsABuildThatIsBeingTaken(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	wait, open := gate(t)
	defer open()
	m.await(m.submit("echo on\n"+wait), "on\n")
	for range 100 {
		id := m.submit("true")
		_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
		require.NoError(t, err)
		_, end := m.wait(id, 0)
		require.Equal(t, "job_canceled", end.GetResult().GetReason())
	}
}

// A build that was lost and is to run again could not be canceled before the next manager had taken it.
func TestACancelMeetsABuildThatIsToRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	wait, open := gate(t)
	defer open()
	first := m.submit("echo on\n" + wait)
	m.await(first, "on\n")
	var last string
	for range 20 { // more than are taken ahead
		last = m.submit("true")
	}
	m.stop()
	manager.PutWaitingRecord(t, f.dir, last)
	m = f.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
	defer cancel()
	_, err := m.Cancel(ctx, &pb.CancelRequest{Id: last})
	require.NoError(t, err)
	_, end := m.wait(last, 0)
	require.Equal(t, "job_canceled", end.GetResult().GetReason())
}
