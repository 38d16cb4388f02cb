package instance_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/pool"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// providerOf returns a provider of several VMs, vm-1 and so on.
func providerOf(t testing.TB, cfg instance.Config, capacity int, vms ...*vm) *instance.Provider {
	t.Helper()
	var all []instance.Instance
	for i, v := range vms {
		in := v.instance(t, capacity)
		in.ID = fmt.Sprintf("vm-%d", i+1)
		all = append(all, in)
	}
	var err error
	cfg.Group, err = instance.NewGroup(all...)
	require.NoError(t, err)
	p, err := instance.NewProvider(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// Symptom: a build without a Log panicked in a goroutine of Run.
func TestABuildOfABatchNeedsNoLog(t *testing.T) {
	p := newVM(t, sshtest.InProcess(t, embeddedvm.Config{})).provider(t, 1, nil)
	requireSuccess(t, batch.Run(sshtest.Within(t), sshtest.Within(t), p, batch.Batch{
		Builds: []batch.Build{{ID: "b1", Job: script("echo text")}},
	}))
}

// runAll runs n builds at once and returns their reports.
func runAll(t testing.TB, p *instance.Provider, n int, text string) []batch.Report {
	t.Helper()
	var builds []batch.Build
	for i := range n {
		builds = append(builds, batch.Build{
			ID: fmt.Sprintf("build-%d", i), Job: connector.Job{Job: &stepmuxv1.Job{Script: text}}, Log: &sshtest.Log{},
		})
	}
	return batch.Run(t.Context(), t.Context(), p, batch.Batch{Builds: builds})
}

func requireSuccess(t testing.TB, reports []batch.Report) {
	t.Helper()
	for _, r := range reports {
		require.Nil(t, r.Err, "%s on %s", r.Build, r.Instance)
		require.NoError(t, r.Cleanup)
	}
}

func statOf(p *instance.Provider, id string) instance.VMStat {
	for _, in := range p.Stat().Instances {
		if in.ID == id {
			return in
		}
	}
	return instance.VMStat{}
}

func TestBuildsGoElsewhereWhenAnInstanceCannotBeReached(t *testing.T) {
	t.Parallel()
	gone, there := newVM(t, sshtest.InProcess(t, embeddedvm.Config{})), newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	gone.Stop()
	p := providerOf(t, instance.Config{}, 4, gone, there)
	reports := runAll(t, p, 12, "true")
	requireSuccess(t, reports)
	for _, r := range reports {
		require.Equal(t, "vm-2", r.Instance)
	}
	stat := statOf(p, "vm-1")
	require.Contains(t, []instance.State{instance.Quarantined, instance.Suspect}, stat.State) // by now it may be due
	require.Zero(t, stat.Uses, "none of them made use of it")
	require.Zero(t, stat.Used)
	require.Equal(t, pool.None, stat.ConnState)
	require.Equal(t, pool.Up, statOf(p, "vm-2").ConnState)
}

func TestABuildThatNoInstanceCanTakeSaysWhy(t *testing.T) {
	t.Parallel()
	var vms []*vm
	for range 4 {
		v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
		v.Stop()
		vms = append(vms, v)
	}
	p := providerOf(t, instance.Config{}, 1, vms...)
	reports := runAll(t, p, 1, "true")
	require.Equal(t, instance.RunnerSystemFailure, reports[0].Err.Reason)
	require.ErrorContains(t, reports[0].Err, "connection refused")
	quarantined := 0
	for _, in := range p.Stat().Instances {
		if in.State != instance.Ready {
			quarantined++
		}
	}
	require.Equal(t, 3, quarantined, "the number of tries is bounded")
}

func TestABuildThatHasStartedIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := providerOf(t, instance.Config{Route: connector.Session}, 1, first, second)
	marks := t.TempDir()
	log := &sshtest.Log{}
	ended := make(chan []batch.Report, 1)
	go func() {
		ended <- batch.Run(t.Context(), t.Context(), p, batch.Batch{Builds: []batch.Build{{
			ID: "b", Job: script("mktemp " + marks + "/ran.XXXXXX; echo started; sleep 600"), Log: log,
		}}})
	}()
	log.Await(t, "started")
	first.Stop() // the build is on it: both had as much room
	reports := <-ended
	require.Equal(t, "vm-1", reports[0].Instance)
	require.Equal(t, instance.RunnerSystemFailure, reports[0].Err.Reason)
	ran, err := filepath.Glob(filepath.Join(marks, "*"))
	require.NoError(t, err)
	require.Len(t, ran, 1)

	// The one that is gone was noticed.
	suspect := func() bool { return statOf(p, "vm-1").State == instance.Suspect }
	require.Eventually(t, suspect, sshtest.Bound, time.Millisecond)
	requireSuccess(t, runAll(t, p, 6, "true"))
}

// While a build runs its instance leaves the set, is drained, or has had its uses: the build ends well, and
// then the connection is closed.
func TestAnInstanceThatIsOutClosesItsConnectionAfterItsLastBuild(t *testing.T) {
	for name, test := range map[string]struct {
		out   func(*instance.Group, instance.Instance) error
		state instance.State
	}{
		"drained": {func(g *instance.Group, in instance.Instance) error { return g.Drain(in.ID) }, instance.Draining},
		"removed": {func(g *instance.Group, in instance.Instance) error {
			other := in
			other.ID = "vm-2"
			return g.Update([]instance.Instance{other})
		}, instance.Removed},
		"used up": {func(g *instance.Group, in instance.Instance) error {
			in.MaxUses = 1
			return g.Update([]instance.Instance{in})
		}, instance.UsedUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			in := v.instance(t, 2)
			group, err := instance.NewGroup(in)
			require.NoError(t, err)
			p, err := instance.NewProvider(instance.Config{Group: group})
			require.NoError(t, err)
			defer p.Close()
			e := p.Executor(instance.Build{ID: "b", Log: io.Discard})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			require.NoError(t, test.out(group, in))
			require.Equal(t, test.state, statOf(p, in.ID).State)
			_, err = e.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
			require.Equal(t, 1, v.TotalConns())
			require.NoError(t, e.Cleanup(sshtest.Within(t)))
			require.Eventually(t, func() bool { return v.VM.Stat().Conns == 0 }, sshtest.Bound, time.Millisecond)
		})
	}
}

// A build that waits for a connection when its instance comes to be reached in another way takes the new one.
func TestABuildThatIsBeingConnectedFollowsANewConfiguration(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	require.NoError(t, err)
	defer silent.Close()
	in := v.instance(t, 1)
	in.Addr = silent.Addr().String()
	group, err := instance.NewGroup(in)
	require.NoError(t, err)
	dialing := make(chan struct{}, 9)
	p, err := instance.NewProvider(instance.Config{
		Group: group, DialStart: func(string, int) { dialing <- struct{}{} },
	})
	require.NoError(t, err)
	defer p.Close()
	ended := make(chan error, 1)
	go func() { ended <- build(sshtest.Within(t), p, "b", script("true"), &sshtest.Log{}) }()
	<-dialing
	require.NoError(t, group.Update([]instance.Instance{v.instance(t, 1)}))
	require.NoError(t, <-ended)
	require.Equal(t, 1, statOf(p, in.ID).Uses)
}

func TestABuildWhoseInstanceIsRemovedWhileItIsBeingConnectedGoesElsewhere(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	gone, there := v.instance(t, 2), v.instance(t, 1)
	gone.ID, gone.Addr, there.ID = "gone", silent.Addr().String(), "there"
	group, err := instance.NewGroup(gone, there)
	require.NoError(t, err)
	dialing := make(chan struct{}, 9)
	p, err := instance.NewProvider(instance.Config{
		Group: group, DialStart: func(string, int) { dialing <- struct{}{} },
	})
	require.NoError(t, err)
	defer p.Close()
	ended := make(chan error, 1)
	go func() { ended <- build(sshtest.Within(t), p, "b", script("true"), &sshtest.Log{}) }()
	<-dialing
	require.NoError(t, p.Remove(sshtest.Within(t), "gone"))
	require.NoError(t, <-ended)
	require.Equal(t, 1, statOf(p, "there").Uses)
}

// It failed, because the group no longer had the instance when its connection was asked for.
func TestABuildWhoseInstanceIsRemovedBeforeItIsConnectedGoesElsewhere(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	gone, there := v.instance(t, 2), v.instance(t, 1)
	gone.ID, there.ID = "gone", "there"
	group, err := instance.NewGroup(gone, there)
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	defer p.Close()
	var placed []string
	e := p.Executor(instance.Build{ID: "b", Placed: func(on string) {
		placed = append(placed, on)
		if on == "gone" {
			require.NoError(t, p.Remove(sshtest.Within(t), "gone"))
		}
	}})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	require.Equal(t, []string{"gone", "there"}, placed)
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
}

// As many instances as may be connected to at once take connections and say nothing. The build after them waited until
// their dials had ended.
func TestInstancesThatSayNothingDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	var all []instance.Instance
	for i := range 40 {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		in := v.instance(t, 2)
		in.ID, in.Addr = fmt.Sprintf("silent-%d", i), silent.Addr().String()
		all = append(all, in)
	}
	group, err := instance.NewGroup(append(all, v.instance(t, 1))...)
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group, DialTimeout: 2 * sshtest.Bound})
	require.NoError(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i := range all {
		e := p.Executor(instance.Build{ID: fmt.Sprintf("b-%d", i), On: all[i].ID})
		e.Queue(nil)
		waiting.Go(func() {
			_ = e.Prepare(ctx) // it is cancelled
			_ = e.Cleanup(ctx)
		})
	}
	e := p.Executor(instance.Build{ID: "b", On: "vm-1"})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
}

func TestABuildThatIsCancelledBeforeItIsConnectedIsNoUse(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	dialing := make(chan struct{}, 9)
	p := v.provider(t, 1, func(c *instance.Config, in *instance.Instance) {
		in.Addr = silent.Addr().String()
		c.DialStart = func(string, int) { dialing <- struct{}{} }
	})
	ctx, cancel := context.WithCancel(sshtest.Within(t))
	ended := make(chan error, 1)
	go func() { ended <- build(ctx, p, "b", script("true"), &sshtest.Log{}) }()
	<-dialing
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	require.Zero(t, p.Stat().Instances[0].Uses)
	require.Equal(t, instance.Ready, p.Stat().Instances[0].State)
}

func TestFiftyInstancesTakeOneConnectionEach(t *testing.T) {
	instances := 50
	if testing.Short() {
		instances = 30
	}
	// Two real servers, each of which is half of the machines: with stock limits, so that dials that are not
	// paced would be refused (MaxStartups).
	servers := []*vm{newVM(t, sshtest.OpenSSH(t)), newVM(t, sshtest.OpenSSH(t))}
	var all []*vm
	for i := range instances {
		all = append(all, servers[i%2])
	}
	var mu sync.Mutex
	var failed []string
	p := providerOf(t, instance.Config{Route: connector.Streamlocal}, 1, all...)
	// More builds than instances: some instances get a second one, which uses the connection again. Every build's serve,
	// started by session, looks at all processes of the machine, which here is that of all of them.
	builds := make([]batch.Build, instances+10)
	for i := range builds {
		builds[i] = batch.Build{
			ID:  fmt.Sprintf("build-%d", i),
			Job: connector.Job{Job: &stepmuxv1.Job{Script: "true"}},
			Log: &sshtest.Log{},
		}
	}
	batch.Run(t.Context(), t.Context(), p, batch.Batch{Builds: builds, OnEnd: func(r batch.Report) {
		mu.Lock()
		defer mu.Unlock()
		if r.Err != nil || r.Cleanup != nil {
			failed = append(failed, fmt.Sprintf("%s on %s: %v %v", r.Build, r.Instance, r.Err, r.Cleanup))
		}
	}})
	require.Empty(t, failed, strings.Join(failed, "\n"))
	uses, used := 0, 0
	for _, in := range p.Stat().Instances {
		require.LessOrEqual(t, in.Connections, 1, in.ID)
		uses += in.Uses
		used += in.Connections
	}
	require.Equal(t, len(builds), uses)
	require.Greater(t, used, instances*9/10, "on a slow machine, a build leaves a VM that does not answer in time")
	require.Equal(t, instances, servers[0].TotalConns()+servers[1].TotalConns())
}

// goneAndThere returns an instance whose VM is gone, vm-1, and one that works, vm-2.
func goneAndThere(t testing.TB) (gone, there instance.Instance) {
	t.Helper()
	first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	first.Stop()
	gone, there = first.instance(t, 1), second.instance(t, 1)
	there.ID = "vm-2"
	return gone, there
}

// Symptom: a build that met a VM that was gone went to the end of the queue, behind all that had come later.
func TestABuildThatGoesElsewhereKeepsItsPlaceInTheQueue(t *testing.T) {
	t.Parallel()
	first, second := goneAndThere(t)
	group, err := instance.NewGroup(first, second)
	require.NoError(t, err)
	later := make(chan struct{})
	p, err := instance.NewProvider(instance.Config{Group: group, DialStart: func(id string, _ int) {
		if id == "vm-1" {
			<-later
		}
	}})
	require.NoError(t, err)
	defer p.Close()
	holder := p.Executor(instance.Build{ID: "holder", On: "vm-2"})
	require.NoError(t, holder.Prepare(sshtest.Within(t)))
	waits := func(ids ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(ids, group.Waiting()) }, sshtest.Bound, time.Millisecond)
	}
	placed := make(chan string, 9)
	var preparing sync.WaitGroup
	defer preparing.Wait()
	prepare := func(b instance.Build) {
		e := p.Executor(b)
		preparing.Go(func() {
			_ = e.Prepare(t.Context())
			_ = e.Cleanup(t.Context())
		})
	}
	prepare(instance.Build{ID: "first", Placed: func(id string) { placed <- id }})
	require.Equal(t, "vm-1", <-placed)
	prepare(instance.Build{ID: "second", On: "vm-2"})
	waits("second")
	close(later)
	waits("first", "second")
	require.NoError(t, holder.Cleanup(t.Context()))
}

// Symptom: a build that lingers waited for a VM that was gone although another was added, and failed after its linger.
func TestABuildThatWaitsForItsVMGoesToOneThatIsAdded(t *testing.T) {
	t.Parallel()
	first, second := goneAndThere(t)
	group, err := instance.NewGroup(first)
	require.NoError(t, err)
	tries := make(chan int, 99)
	p, err := instance.NewProvider(instance.Config{Group: group, DialStart: func(_ string, n int) { tries <- n }})
	require.NoError(t, err)
	defer p.Close()
	linger := time.Hour
	e := p.Executor(instance.Build{ID: "b", Linger: &linger})
	prepared := make(chan error, 1)
	go func() { prepared <- e.Prepare(sshtest.Within(t)) }()
	for dials := 0; dials < 2; { // it waits from the second dial on
		if <-tries == 1 {
			dials++
		}
	}
	require.NoError(t, group.Update([]instance.Instance{second}))
	require.NoError(t, <-prepared)
	require.Equal(t, "vm-2", e.Instance())
	require.NoError(t, e.Cleanup(t.Context()))
}
