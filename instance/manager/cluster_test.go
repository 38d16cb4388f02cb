package manager_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// natsServer starts a NATS server, and returns its address.
func natsServer(t *testing.T) string {
	t.Helper()
	return startNATS(t, newNATSServer(t, server.RANDOM_PORT, 8<<20))
}

func startNATS(t *testing.T, s *server.Server) string {
	t.Helper()
	s.Start()
	require.True(t, s.ReadyForConnections(sshtest.Bound))
	return s.Addr().String()
}

// newNATSServer returns a NATS server that is not started.
func newNATSServer(t *testing.T, port int, maxPayload int32) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true, MaxPayload: maxPayload,
		JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 40, // whatever the disk has
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// testLease leaves a manager on a busy machine some seconds to renew its lease, and so a claim of its own.
const testLease = 10 * time.Second

// cluster is VMs that managers share.
type cluster struct {
	fleet
	nats, key string
	lease     time.Duration
	fileBytes int64
}

// clusters bounds the clusters at a time: on a busy machine more of them cannot keep their leases.
var clusters = make(chan struct{}, 2)

func newCluster(t *testing.T) *cluster {
	t.Helper()
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	c := &cluster{fleet: *newFleet(t), nats: natsServer(t), lease: testLease}
	c.more = sshtest.InProcess(t, embeddedvm.Config{})
	c.key = filepath.Join(t.TempDir(), "key")
	return c
}

// member starts a manager that reaches NATS at an address.
func (c *cluster) member(t *testing.T, nats string) *running {
	t.Helper()
	return c.memberWith(t, nats, func(*manager.Config) {})
}

func (c *cluster) memberWith(t *testing.T, nats string, change func(*manager.Config)) *running {
	t.Helper()
	f := c.fleet
	f.dir = filepath.Join(t.TempDir(), "state")
	f.change = func(cfg *manager.Config) {
		cfg.NATS, cfg.KeyFile, cfg.Lease = &state.NATS{URLs: []string{"nats://" + nats}}, c.key, c.lease
		cfg.FileBytes = c.fileBytes
		change(cfg)
	}
	return f.start(t)
}

// requireStates waits until a manager tells this state of both VMs. It does not know those of a manager whose answer is
// late.
func requireStates(t *testing.T, m *running, state string) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := m.Status(t.Context(), &pb.StatusRequest{})
		var s control.Status
		return err == nil && json.Unmarshal(resp.GetJson(), &s) == nil && len(s.Instances) == 2 &&
			s.Instances[0].State == state && s.Instances[1].State == state
	}, sshtest.Bound, 10*time.Millisecond, "both are %s", state)
}

// Symptom: at the end of each build its manager read the first 64 requests in the queue, and their records. That took
// more time of the processors than the build.
func TestTheEndOfABuildReadsNoOthers(t *testing.T) {
	t.Parallel()
	const builds = 60 // most of them wait for a slot
	c, server, ended := newCluster(t), newNATSServer(t, server.RANDOM_PORT, 8<<20), make(chan struct{}, builds)
	m := c.memberWith(t, startNATS(t, server), func(cfg *manager.Config) {
		cfg.OnEnd = func(batch.Report) { ended <- struct{}{} }
	})
	wait, open := gate(t)
	for range builds {
		m.submit(wait)
	}
	before := calls(t, server)
	open()
	for range builds {
		<-ended
	}
	each := (calls(t, server) - before) / builds
	t.Logf("%d calls for a build", each)
	require.Less(t, each, 6)
}

// calls returns how many calls of its API a NATS server has had.
func calls(t *testing.T, s *server.Server) int {
	t.Helper()
	info, err := s.Jsz(nil)
	require.NoError(t, err)
	return int(info.API.Total) // fits
}

// Symptom: a manager did not start after an update: "open the queue: ... storage type can not be updated".
func TestAManagerTakesBuildsFromTheQueueOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.member(t, c.nats).stop()
	nc, err := nats.Connect("nats://" + c.nats)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	consumer, err := js.Consumer(t.Context(), "STEPMUX_QUEUE", "manager")
	require.NoError(t, err)
	earlier := consumer.CachedInfo().Config
	earlier.MemoryStorage = false
	require.NoError(t, js.DeleteConsumer(t.Context(), "STEPMUX_QUEUE", "manager"))
	_, err = js.CreateConsumer(t.Context(), "STEPMUX_QUEUE", earlier)
	require.NoError(t, err)
	m := c.member(t, c.nats)
	text, _ := m.wait(m.submit("echo on"), 0)
	require.Equal(t, "on\n", text)
}

// Both managers have one of the two VMs, and are one to their users.
func TestManagersOfAClusterAreOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.member(t, c.nats)
	b := c.member(t, c.nats)
	require.Eventually(t, func() bool {
		return a.m.Holds() == 1 && b.m.Holds() == 1
	}, sshtest.Bound, 10*time.Millisecond, "each manager has its share")
	for _, m := range []*running{a, b} {
		requireStates(t, m, "ready")
	}
	wait, open := gate(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	var ids []string
	for i := range 8 {
		m := a
		if i%2 == 0 {
			m = b
		}
		ids = append(ids, m.submit(fmt.Sprintf("echo begun %d >>%s\necho begun\n%s\necho done", i, ledger, wait)))
	}
	on := map[string]int{}
	for _, id := range ids[:4] { // there are as many slots
		a.await(id, "begun\n")
		b.await(id, "begun\n")
		build, err := a.Get(t.Context(), &pb.GetRequest{Id: id})
		require.NoError(t, err)
		on[build.GetInstance()]++
	}
	require.Equal(t, map[string]int{"vm-1": 2, "vm-2": 2}, on, "no manager takes a build for which it has no slot")
	for _, m := range []*running{a, b} {
		var list *pb.ListResponse
		var err error
		require.Eventually(t, func() bool { // a manager that answers late is not counted
			list, err = m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued})
			return err != nil || list.GetRunning() == 4 && list.GetQueued() == 4
		}, sshtest.Bound, 10*time.Millisecond)
		require.NoError(t, err)
		require.Len(t, list.GetBuilds(), 4)
		require.Equal(t, ids[4], list.GetBuilds()[0].GetId())
	}
	for _, id := range ids[2:4] { // they are on one manager each, or both on one
		_, err := a.Cancel(t.Context(), &pb.CancelRequest{Id: id})
		require.NoError(t, err)
		_, build := b.wait(id, 0)
		require.Equal(t, "job_canceled", build.GetResult().GetReason())
	}
	_, err := b.Cancel(t.Context(), &pb.CancelRequest{Id: ids[7]})
	require.NoError(t, err)
	_, err = a.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1", "vm-2"}, Note: "disk"})
	require.NoError(t, err)
	requireStates(t, b, "draining") // a drain is one of the fleet
	requireStates(t, a, "draining")
	page := b.servePage(t, false)
	require.Eventually(t, func() bool {
		var now struct{ VMs map[string]int }
		page.json("/overview.json", &now)
		return now.VMs["draining"] == 2
	}, sshtest.Bound, 10*time.Millisecond)
	require.Contains(t, page.get("/audit"), "<td>drain</td>", "by the other manager")
	for _, id := range ids[:2] { // one of them is on a VM of the other manager
		require.Contains(t, page.get("/builds/"+id), "begun\n</pre>")
	}
	for vm := range on {
		require.Eventually(t, func() bool { return strings.Contains(page.get("/vms/"+vm), "draining") }, sshtest.Bound,
			10*time.Millisecond)
	}
	_, err = b.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1", "vm-2"}})
	require.NoError(t, err)
	open()
	for i, id := range ids[:7] {
		if i == 2 || i == 3 {
			continue
		}
		m := a
		if i%2 == 0 {
			m = b
		}
		text, build := m.wait(id, 0)
		require.Equal(t, "begun\ndone\n", text)
		require.Empty(t, build.GetResult().GetReason(), build.GetResult().GetMessage())
	}
	_, build := a.wait(ids[7], 0)
	require.Equal(t, "job_canceled", build.GetResult().GetReason())
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	for i := range 7 {
		require.Equal(t, 1, strings.Count(string(ran), fmt.Sprintf("begun %d\n", i)), "%s", ran)
	}
	b.stop()
	require.Eventually(t, func() bool { return a.m.Holds() == 2 }, sshtest.Bound, 10*time.Millisecond,
		"a manager that ends leaves its VMs to the others")
	f := c.fleet
	f.dir = filepath.Join(t.TempDir(), "state")
	f.change = func(cfg *manager.Config) {
		cfg.NATS, cfg.KeyFile = &state.NATS{URLs: []string{"nats://" + c.nats}}, filepath.Join(t.TempDir(), "key")
	}
	_, _, err = f.open(t)
	require.ErrorContains(t, err, "sealed with another key")
	f.change = func(cfg *manager.Config) {
		cfg.NATS, cfg.KeyFile = &state.NATS{URLs: []string{"nats://u:hidden@127.0.0.1:1"}}, c.key
	}
	f.opening = time.Second
	_, _, err = f.open(t)
	require.ErrorContains(t, err, "connect to NATS at nats://u:xxxxx@127.0.0.1:1: ")
}

// Symptom: after a reboot of all machines a manager that was faster than its NATS servers gave up.
func TestAManagerThatStartsBeforeNATSWaitsForIt(t *testing.T) {
	t.Parallel()
	c := &cluster{fleet: *newFleet(t), key: filepath.Join(t.TempDir(), "key"), lease: testLease}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().(*net.TCPAddr)
	require.NoError(t, listener.Close()) // until NATS listens there, connections are refused
	s := newNATSServer(t, addr.Port, 8<<20)
	waits := &awaitedLine{text: "waits until the NATS cluster answers", seen: make(chan struct{})}
	var starting sync.WaitGroup
	starting.Go(func() {
		select {
		case <-waits.seen:
			s.Start()
		case <-t.Context().Done():
		}
	})
	m := c.memberWith(t, addr.String(), func(cfg *manager.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(waits, nil))
	})
	starting.Wait()
	m.wait(m.submit("true"), 0)
}

// With a small max_payload, a build with much output hung: its log could not be stored, and nobody was told.
func TestNATSServersThatTakeNoPieceOfALogAreRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	addr := startNATS(t, newNATSServer(t, server.RANDOM_PORT, 512<<10))
	f.change = func(cfg *manager.Config) {
		cfg.NATS, cfg.KeyFile = &state.NATS{URLs: []string{addr}}, filepath.Join(t.TempDir(), "key")
	}
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "set their max_payload to at least 1MB")
}

// With many VMs, ps showed those of other managers as elsewhere, and nobody was told why.
func TestAnAnswerThatIsTooLargeForNATSIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.nats = startNATS(t, newNATSServer(t, server.RANDOM_PORT, 1<<20))
	large := &awaitedLine{text: "is max_payload of the NATS servers 8MB?", seen: make(chan struct{})}
	a := c.memberWith(t, c.nats, func(cfg *manager.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(large, nil))
		all := cfg.Group.Instances()
		all[0].Labels = map[string]string{"k": strings.Repeat("v", 1<<20)}
		require.NoError(t, cfg.Group.Update(all[:1]))
	})
	a.awaitHeld(1)
	b := c.member(t, c.nats)
	require.Eventually(t, func() bool { // b knows of the other one soon
		_, _ = b.Status(t.Context(), &pb.StatusRequest{}) // without that VM
		select {
		case <-large.seen:
			return true
		default:
			return false
		}
	}, sshtest.Bound, 10*time.Millisecond)
}

// Nobody was told why a build did not go on.
func TestALogThatCannotBeStoredIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.lease = manager.DefaultLease // longer than the manager waits before it tells
	proxy := sshtest.Proxy(t, c.nats)
	waits := &awaitedLine{text: "a build waits, because its log cannot be stored", seen: make(chan struct{})}
	m := c.memberWith(t, proxy.Addr(), func(cfg *manager.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(waits, nil))
	})
	wait, open := gate(t)
	id := m.submit("echo on\n" + wait + "\necho off")
	m.await(id, "on\n")
	proxy.Stall()
	open()
	select {
	case <-waits.seen:
	case <-time.After(sshtest.Bound): //nolint:forbidigo // a test's bound
		require.FailNow(t, "the manager's log says nothing")
	}
	proxy.Resume()
	text, _ := m.wait(id, 0)
	require.Equal(t, "on\noff\n", text)
}

// awaitedLine closes seen once a manager's log has a text.
type awaitedLine struct {
	text string
	once sync.Once
	seen chan struct{}
}

func (l *awaitedLine) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(l.text)) {
		l.once.Do(func() { close(l.seen) })
	}
	return len(p), nil
}

// A manager that NATS cannot be reached from leaves its VM before another one takes it. Its builds go on there.
//
//stepmux:reliability promises | If one of several managers that share VMs dies, is cut off or is ended, no build is
//stepmux:more lost; only one of them uses a VM at a time
//stepmux:with instance/manager.TestManagersOfAClusterAreOne, instance.TestASharedInstanceIsUsedOnlyWhileItIsHeld
//stepmux:with cmd/stepmux.TestAClusterWhoseMembersAreKilledLosesNothing
func TestAManagerThatIsCutOffLosesItsVMsAndNoBuild(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	proxy := sshtest.Proxy(t, c.nats)
	a := c.member(t, proxy.Addr())
	b := c.member(t, c.nats)
	require.Eventually(t, func() bool {
		return a.m.Holds() == 1 && b.m.Holds() == 1
	}, sshtest.Bound, 10*time.Millisecond)
	wait, open := gate(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	var ids []string
	for i := range 4 {
		ids = append(ids, b.submit(fmt.Sprintf("echo begun %d >>%s\necho begun\n%s\necho done\nexit %d", i, ledger, wait, i)))
		b.await(ids[i], "begun\n")
	}
	proxy.Stall()
	require.Eventually(t, func() bool { return b.m.Holds() == 2 }, sshtest.Bound, 10*time.Millisecond)
	require.Zero(t, a.m.Holds(), "it has left its VM")
	open()
	for i, id := range ids {
		text, build := b.wait(id, 0)
		require.Equal(t, "begun\ndone\n", text)
		require.EqualValues(t, i, build.GetResult().GetExitCode(), build.GetResult().GetMessage())
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(ran), "begun"), "%s", ran)
	proxy.Resume()
	require.Eventually(t, func() bool {
		return a.m.Holds() == 1 && b.m.Holds() == 1
	}, sshtest.Bound, 10*time.Millisecond, "a manager that is back has its share again")
	text, _ := a.wait(b.submit("echo again"), 0)
	require.Equal(t, "again\n", text)
}

// A build that was resumed while its manager lost the VM failed, although it went on there.
func TestABuildWhoseVMIsElsewhereIsLeftToTheNextManager(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.more = nil
	m := c.member(t, c.nats)
	wait, open := gate(t)
	id := m.submit("echo begun\n" + wait + "\necho done")
	m.await(id, "begun\n")
	m.m.Withdraw("vm-1") // until the manager looks at its claims
	open()
	text, b := m.wait(id, 0)
	require.Equal(t, "begun\ndone\n", text)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
}

// Symptom: a password with a percent sign, or that of an address without nats://, was in the log.
func TestNoMessageHasThePasswordOfNATS(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"nats://u:hidden%zz@127.0.0.1:1", "u:hidden@127.0.0.1:1"} {
		var said bytes.Buffer
		f := newFleet(t)
		f.opening = time.Second
		f.change = func(cfg *manager.Config) {
			cfg.NATS, cfg.KeyFile = &state.NATS{URLs: []string{url}}, filepath.Join(t.TempDir(), "key")
			cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		}
		_, _, err := f.open(t)
		require.ErrorContains(t, err, "connect to NATS at ")
		require.NotContains(t, err.Error()+said.String(), "hidden")
	}
}
