package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/scaler"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// servers is a source whose VMs are servers of this process.
type servers struct {
	t    *testing.T
	tmp  string
	runs []string // the runner's command

	mu   sync.Mutex // guards the following
	free []*sshtest.Server
	vms  map[string]*sshtest.Server
	next int
	away bool // it fails
}

// newServers returns a source of so many VMs.
func newServers(t *testing.T, n int) *servers {
	t.Helper()
	s := &servers{t: t, tmp: sshtest.SocketDir(t), runs: runnertest.Command(t), vms: map[string]*sshtest.Server{}}
	for range n {
		s.free = append(s.free, sshtest.InProcess(t, embeddedvm.Config{}))
	}
	return s
}

var errAway = errors.New("the cloud is away")

func (s *servers) lock() (unlock func(), err error) {
	s.mu.Lock()
	if s.away {
		err = errAway
	}
	return s.mu.Unlock, err
}

func (s *servers) Info(context.Context) (source.Info, error) {
	return source.Info{Name: "servers"}, nil
}

func (s *servers) List(context.Context) (all []source.VM, err error) {
	unlock, err := s.lock()
	defer unlock()
	for id, server := range s.vms {
		host, port, splitErr := net.SplitHostPort(server.Addr)
		number, convErr := strconv.Atoi(port)
		all = append(all, source.VM{ID: id, State: source.Running, Address: host, Port: number})
		err = errors.Join(err, splitErr, convErr)
	}
	return all, err
}

func (s *servers) Create(_ context.Context, r source.Request) (int, []string, error) {
	unlock, err := s.lock()
	defer unlock()
	var ids []string
	for range min(r.Count, len(s.free)) {
		s.next++
		id := fmt.Sprintf("server-%d", s.next)
		s.vms[id], s.free = s.free[0], s.free[1:]
		ids = append(ids, id)
	}
	return len(ids), ids, err
}

func (s *servers) Delete(_ context.Context, ids []string, _ string) ([]string, error) {
	unlock, err := s.lock()
	defer unlock()
	for _, id := range ids {
		if server := s.vms[id]; server != nil {
			s.free = append(s.free, server)
			delete(s.vms, id)
		}
	}
	return ids, err
}

func (s *servers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.vms)
}

func (s *servers) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// instances returns the instances for VMs.
func (s *servers) instances(labels map[string]string) func(context.Context, []source.VM) ([]instance.Instance, error) {
	return func(_ context.Context, vms []source.VM) (all []instance.Instance, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, vm := range vms {
			server := s.vms[vm.ID]
			all = append(all, instance.Instance{
				ID: vm.ID, Addr: net.JoinHostPort(vm.Address, strconv.Itoa(vm.Port)), Capacity: 2, Runner: s.runs,
				Options: vmconfig.Options{TempDir: s.tmp}, Labels: labels,
				SSH: mux.Config{
					User: server.User, Auth: []login.Auth{login.Key("of the test", server.Signer)},
					HostKeys: login.PinnedHostKeys(server.HostKey),
				},
			})
		}
		return all, nil
	}
}

// elasticFleet is a fleet whose VMs are those of a source.
type elasticFleet struct {
	fleet
	*servers
}

func newElasticFleet(t *testing.T, vms int, labels map[string]string) *elasticFleet {
	t.Helper()
	f := &elasticFleet{servers: newServers(t, vms)}
	f.fleet = *newFleetOn(t, nil)
	f.change = func(cfg *manager.Config) { cfg.VMGroups = f.groups(vms, labels) }
	return f
}

// groups returns a group of at most so many VMs.
func (s *servers) groups(vms int, labels map[string]string) []manager.VMGroup {
	return []manager.VMGroup{{
		Config: scaler.Config{
			Name: "small", Source: s, Labels: labels, Period: time.Second,
			Policy: elastic.Config{Capacity: 2, MaxInstances: vms, Rules: []elastic.Rule{{IdleTime: time.Second}}},
		},
		Instances: s.instances(labels),
	}}
}

func (r *running) status() control.Status {
	r.t.Helper()
	s, err := control.Ask(r.t.Context(), r)
	require.NoError(r.t, err)
	return s
}

func TestVMsComeForBuildsAndGoAfterThem(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 3, map[string]string{"size": "small"})
	m := f.start(t)
	wait, open := gate(t)
	var ids []string
	for i := range 3 {
		j := job("echo begun\n" + wait)
		if i == 0 {
			j.Labels = map[string]string{"size": "small"}
		}
		ids = append(ids, m.submitJob(j))
	}
	other := job("true")
	other.Labels = map[string]string{"size": "large"}
	_, err := m.Submit(t.Context(), other)
	require.ErrorContains(t, err, "no VM has the labels size=large")
	for _, id := range ids {
		m.await(id, "begun")
	}
	require.Equal(t, 2, f.count(), "three builds fit on two VMs")
	status := m.status()
	require.Len(t, status.Groups, 1)
	require.Equal(t, "servers", status.Groups[0].Source)
	require.Len(t, status.Instances, 2)
	require.Eventually(t, func() bool {
		g := m.status().Groups[0]
		return g.Ready == 2 && g.Max == 3 && g.Waiting == 0 && g.Wanted == 3 && g.Supply == 4
	}, sshtest.Bound, time.Second/10)
	open()
	for _, id := range ids {
		_, b := m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	}
	require.Eventually(t, func() bool {
		return f.count() == 0 && len(m.status().Instances) == 0
	}, sshtest.Bound, time.Second/10)
	m.stop()
	m = f.start(t)
	require.Empty(t, m.status().Instances, "nothing of the VMs is kept")
}

// Complaint: a restart loses the VMs, or deletes them with the builds on them.
func TestARestartKeepsTheBuildsOnVMsOfAGroup(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 1, nil)
	m := f.start(t)
	wait, open := gate(t)
	id := m.submit("echo begun\n" + wait + "\necho done")
	m.await(id, "begun")
	m.stop()
	f.setAway(true)
	m = f.start(t)
	open()
	text, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Contains(t, text, "done")
	require.Eventually(t, func() bool {
		s := m.status()
		return slices.ContainsFunc(s.Groups, func(g control.VMGroup) bool { return g.Error == errAway.Error() })
	}, sshtest.Bound, time.Second/10)
	require.Equal(t, 1, f.count())
	f.setAway(false)
	require.Eventually(t, func() bool { return f.count() == 0 }, sshtest.Bound, time.Second/10)
}

// An operator's drain and the policy's do not undo each other.
func TestAVMThatAnOperatorDrainsIsNotDeleted(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 2, nil)
	m := f.start(t)
	wait, open := gate(t)
	id := m.submit("echo begun\n" + wait)
	m.await(id, "begun")
	vm := m.status().Instances[0].ID
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{vm}, Note: "to be examined"})
	require.NoError(t, err)
	open()
	m.wait(id, 0)
	next := m.submit("echo elsewhere")
	_, b := m.wait(next, 0)
	require.NotEqual(t, vm, b.GetInstance(), "another VM was made for it")
	require.Eventually(t, func() bool { return f.count() == 1 }, sshtest.Bound, time.Second/10)
	status := m.status()
	require.Equal(t, vm, status.Instances[0].ID)
	require.Equal(t, "to be examined", status.Instances[0].Reason)
	require.Equal(t, 1, status.Groups[0].Other)
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{vm}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.count() == 0 }, sshtest.Bound, time.Second/10)
	// Its drain stayed in the state for ever, or the mark of its end.
	require.Eventually(t, func() bool { return m.m.DrainIsForgotten(t, vm) }, sshtest.Bound, time.Second/10)
}

// A lease, as of a login, gets a VM, and keeps it.
func TestALeaseGetsAVMOfAGroup(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 1, map[string]string{"size": "small"})
	m := f.start(t)
	_, err := m.reserve(sshtest.Within(t), &pb.ReserveRequest{Labels: map[string]string{"size": "large"}})
	require.ErrorContains(t, err, "size=large", "no VM has it, nor can one be made")
	lease, err := m.reserve(sshtest.Within(t), &pb.ReserveRequest{Labels: map[string]string{"size": "small"}})
	require.NoError(t, err)
	require.Equal(t, 1, f.count())
	require.Eventually(t, func() bool {
		g := m.status().Groups[0]
		return g.Wanted == 1 && g.Waiting == 0 && g.Ready == 1
	}, sshtest.Bound, time.Second/10)
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: lease.GetLease()})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.count() == 0 }, sshtest.Bound, time.Second/10)
}

// A VM that has the address of another one would get its builds.
func TestAVMWithTheAddressOfAnInstanceIsRefused(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 1, nil)
	f.vm = f.free[0] // it is in the inventory, too
	f.vms["twin"] = f.free[0]
	m := f.start(t)
	require.Eventually(t, func() bool { return m.status().Groups[0].Error != "" }, sshtest.Bound, time.Second/10)
	require.Equal(t, "use the VMs of the source: twin has the address "+f.vm.Addr+" of the instance vm-1",
		m.status().Groups[0].Error)
	require.Len(t, m.status().Instances, 1)
	_, b := m.wait(m.submit("true"), 0)
	require.Equal(t, "vm-1", b.GetInstance())
}

// Complaints: without a VM no job is asked for, and without a job no VM is made (gitlab-runner 38326); a reservation
// for which no job came keeps a VM (39161, taskscaler 60).
func TestAJobOfAServerMakesAVM(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 1, nil)
	change := f.change
	f.change = func(cfg *manager.Config) {
		change(cfg)
		cfg.Pipelines = managed.Pipelines{}
	}
	m := f.start(t)
	fake, url := serveFake(t, gitlabtest.Config{})
	g := serveGitLab(t, m, fake, url)
	id := fake.Add(scriptJob(url, "echo made for it"))
	job := g.ended(id)
	require.Equal(t, gitlabtest.Success, job.Status, "%s", job.Trace)
	require.Contains(t, shown(t, job), "made for it")
	// A door that waits for a job keeps no VM.
	require.Eventually(t, func() bool { return f.count() == 0 }, sshtest.Bound, time.Second/10)
}

// The managers of a cluster use the VMs of a group together. One of them makes and deletes VMs, and another one does so
// after it.
func TestOneManagerOfAClusterScales(t *testing.T) {
	t.Parallel()
	c, s := newCluster(t), newServers(t, 4)
	c.vm, c.more = nil, nil
	start := func() *running {
		return c.memberWith(t, c.nats, func(cfg *manager.Config) { cfg.VMGroups = s.groups(4, nil) })
	}
	a := start()
	require.Eventually(t, func() bool { return a.status().Groups[0].Scales }, sshtest.Bound, time.Second/10)
	b := start()
	wait, open := gate(t)
	var ids []string
	for range 3 {
		ids = append(ids, b.submit("echo begun\n"+wait))
	}
	for _, id := range ids {
		b.await(id, "begun")
	}
	require.Equal(t, 2, s.count())
	require.False(t, b.status().Groups[0].Scales)
	a.stop()
	require.Eventually(t, func() bool { return b.status().Groups[0].Scales }, sshtest.Bound, time.Second/10)
	open()
	for _, id := range ids {
		_, got := b.wait(id, 0)
		require.Empty(t, got.GetResult().GetReason(), got.GetResult().GetMessage())
	}
	require.Eventually(t, func() bool { return s.count() == 0 }, sshtest.Bound, time.Second/10)
}
