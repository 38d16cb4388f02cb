package scaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
)

// world is held while a part of the cloud or the host is used, and once each time that a test lets time pass.
var world sync.Mutex

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cloud is a Source in memory. Its VMs are there at once, and run after some time.
type cloud struct {
	start   time.Duration // until a VM runs
	slow    time.Duration // of create and delete
	vms     map[string]*source.VM
	ready   map[string]time.Time
	made    map[string][]string // by request
	next    int
	creates int // calls
	deletes [][]string
	fail    func(op string) error // may be nil
	dud     func(id string) bool  // may be nil; such a VM never answers
	stuck   bool                  // delete hangs
	t       *testing.T
	inUse   func(id string) bool // may be nil
}

func newCloud(t *testing.T) *cloud {
	return &cloud{
		t: t, start: 2 * time.Second, vms: map[string]*source.VM{}, ready: map[string]time.Time{},
		made: map[string][]string{},
	}
}

func (c *cloud) failed(op string) error {
	if c.fail == nil {
		return nil
	}
	return c.fail(op)
}

func (c *cloud) Info(context.Context) (source.Info, error) {
	world.Lock()
	defer world.Unlock()
	return source.Info{Name: "a cloud"}, c.failed("info")
}

func (c *cloud) List(context.Context) (all []source.VM, err error) {
	world.Lock()
	defer world.Unlock()
	if err := c.failed("list"); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(c.vms)) {
		vm := *c.vms[id]
		if vm.State == source.Creating && !time.Now().Before(c.ready[id]) {
			vm.State, vm.Address = source.Running, id+".example.com"
			*c.vms[id] = vm
		}
		all = append(all, vm)
	}
	return all, nil
}

// sleep waits, unless ctx ends before. The world goes on.
func sleep(ctx context.Context, d time.Duration) error {
	world.Unlock()
	defer world.Lock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *cloud) Create(ctx context.Context, r source.Request) (int, []string, error) {
	world.Lock()
	defer world.Unlock()
	c.creates++
	if err := c.failed("create"); err != nil {
		return 0, nil, err
	}
	if c.made[r.ID] == nil {
		for range r.Count {
			c.next++
			id := fmt.Sprintf("vm-%d", c.next)
			c.made[r.ID] = append(c.made[r.ID], id)
			c.vms[id] = &source.VM{ID: id, State: source.Creating}
			c.ready[id] = time.Now().Add(c.start)
		}
	}
	if err := sleep(ctx, c.slow); err != nil {
		return 0, nil, err
	}
	return r.Count, c.made[r.ID], c.failed("created")
}

func (c *cloud) Delete(ctx context.Context, ids []string, _ string) ([]string, error) {
	world.Lock()
	defer world.Unlock()
	if err := c.failed("delete"); err != nil {
		return nil, err
	}
	if c.stuck {
		return nil, sleep(ctx, time.Hour)
	}
	c.deletes = append(c.deletes, ids)
	for _, id := range ids {
		require.False(c.t, c.inUse != nil && c.inUse(id), "%s is in use", id)
		delete(c.vms, id)
	}
	if err := sleep(ctx, c.slow); err != nil {
		return nil, err
	}
	return ids, c.failed("deleted")
}

// host is a Host in memory: its state outlives a Scaler, as on a disk.
type host struct {
	record  []byte
	vms     map[string][]byte
	others  bool // another manager has the claim
	failing error

	used    map[string]source.VM
	refuse  error
	drained map[string]bool
	busy    map[string]int // builds by VM
	uses    map[string]int
	waiting int
	ghosts  bool // VMs answer that the cloud does not list
	state   map[string]bool
	notes   []string
	cloud   *cloud
}

func newHost(c *cloud) *host {
	h := &host{
		vms: map[string][]byte{}, used: map[string]source.VM{}, busy: map[string]int{}, uses: map[string]int{},
		state: map[string]bool{}, cloud: c,
	}
	c.inUse = func(id string) bool { return h.busy[id] > 0 || h.state[id] }
	return h
}

func (h *host) Use(_ context.Context, vms []source.VM) error {
	world.Lock()
	defer world.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	h.used = map[string]source.VM{}
	for _, vm := range vms {
		h.used[vm.ID] = vm
	}
	return nil
}

func (h *host) Drain(ids map[string]bool) {
	world.Lock()
	defer world.Unlock()
	h.drained = ids
}

func (h *host) Look(context.Context) (Look, error) {
	world.Lock()
	defer world.Unlock()
	l := Look{VMs: map[string]Usage{}, Waiting: h.waiting}
	for id, vm := range h.used {
		ready := vm.State == source.Running && (h.cloud.dud == nil || !h.cloud.dud(id))
		l.VMs[id] = Usage{
			Used: h.busy[id], Uses: h.uses[id], Ready: ready, Drained: h.drained[id],
			Alive: ready && (h.ghosts || h.cloud.vms[id] != nil),
		}
	}
	return l, h.failing
}

func (h *host) Busy(context.Context) (map[string]bool, error) {
	world.Lock()
	defer world.Unlock()
	return maps.Clone(h.state), h.failing
}

func (h *host) Claim(context.Context) ([]byte, bool, error) {
	world.Lock()
	defer world.Unlock()
	return h.record, !h.others, h.failing
}

func (h *host) Keep(_ context.Context, record []byte) error {
	world.Lock()
	defer world.Unlock()
	if h.failing != nil {
		return h.failing
	}
	if h.others {
		return ErrLost
	}
	h.record = record
	return nil
}

func (h *host) KeptVMs(context.Context) (map[string][]byte, error) {
	world.Lock()
	defer world.Unlock()
	return maps.Clone(h.vms), h.failing
}

func (h *host) KeepVM(_ context.Context, id string, text []byte) error {
	world.Lock()
	defer world.Unlock()
	h.vms[id] = text
	return h.failing
}

func (h *host) ForgetVM(_ context.Context, id string) error {
	world.Lock()
	defer world.Unlock()
	delete(h.vms, id)
	return h.failing
}

func (h *host) Note(action, id, why string) {
	world.Lock()
	defer world.Unlock()
	h.notes = append(h.notes, action+" "+id+": "+why)
}

// place gives slots to builds that wait.
func (h *host) place(capacity int) {
	for _, id := range slices.Sorted(maps.Keys(h.used)) {
		for h.waiting > 0 && !h.drained[id] && h.used[id].State == source.Running && h.busy[id] < capacity {
			h.waiting--
			h.busy[id]++
			h.uses[id]++
		}
	}
}

// running is a Scaler that runs, until stop is called.
type running struct {
	*Scaler
	stop func()
}

func start(t *testing.T, cfg elastic.Config, h *host) running {
	t.Helper()
	s, err := New(Config{
		Name: "g", Policy: cfg, Source: h.cloud, Logger: slog.New(slog.DiscardHandler), ReadyTimeout: time.Minute,
	}, h)
	require.NoError(t, err)
	require.NoError(t, s.Restore(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return running{s, stop}
}

// after lets time pass, until all is at rest.
func after(d time.Duration) {
	pass := func() {
		world.Lock()
		defer world.Unlock()
	}
	pass()
	time.Sleep(d) //nolint:forbidigo // of the bubble
	synctest.Wait()
	pass()
}

// scene runs a test in fake time, with a cloud and a host.
func scene(t *testing.T, test func(t *testing.T, c *cloud, h *host)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		test(t, c, newHost(c))
	})
}

func TestVMsAreMadeForBuildsThatWaitAndDeletedAfterThem(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 5
		s := start(t, elastic.Config{Capacity: 2, MaxInstances: 9, Rules: []elastic.Rule{{IdleTime: time.Minute}}}, h)
		after(5 * time.Second)
		require.Len(t, h.used, 3)
		require.Equal(t, 1, c.creates)
		status := s.Status()
		require.Equal(t, []int{3, 0, 5, 6, 5}, []int{
			status.Ready, status.Making, status.Demand, status.Supply, status.Waiting,
		})
		require.Equal(t, "a cloud", status.Source)
		h.place(2)
		after(time.Hour)
		require.Len(t, c.vms, 3, "they are in use")
		clear(h.busy)
		after(time.Minute + 3*time.Second)
		require.Empty(t, c.vms)
		after(30 * time.Second)
		require.Empty(t, h.used)
		require.Empty(t, h.vms)
		require.Empty(t, s.Status().Notes)
		require.Equal(t, "{}", string(h.record))
	})
}

// The promise of ELASTIC: with 1,000 kills of the manager in the middle of anything, no VM is made twice, lost, or
// deleted while it is in use.
func TestAManagerThatIsKilledAtAnyTimeMakesAndDeletesOnce(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		random := rand.New(rand.NewPCG(1, 2))
		c.slow = 3 * time.Second
		cfg := elastic.Config{Capacity: 2, MaxInstances: 6, Rules: []elastic.Rule{{IdleTime: 20 * time.Second}}}
		for range 1000 {
			s := start(t, cfg, h)
			for range random.IntN(10) {
				after(time.Duration(random.IntN(5000)) * time.Millisecond)
				require.LessOrEqual(t, len(c.vms), 6)
				if random.IntN(3) == 0 {
					h.waiting += random.IntN(4)
				}
				h.place(2)
				for id, n := range h.busy {
					h.busy[id] = random.IntN(n + 1)
				}
				if random.IntN(30) == 0 { // a VM vanishes with its builds
					for id := range c.vms {
						delete(c.vms, id)
						break
					}
				}
				maps.DeleteFunc(h.busy, func(id string, n int) bool { return n == 0 || c.vms[id] == nil })
			}
			s.stop()
		}
		h.waiting = 0
		clear(h.busy)
		start(t, cfg, h)
		after(5 * time.Minute)
		require.Empty(t, c.vms)
		require.Empty(t, h.vms)
		made := 0
		for _, ids := range c.made {
			made += len(ids)
		}
		require.Greater(t, made, 50, "there was something to do")
	})
}

func TestARestartKeepsVMsAndSendsTheSameRequestAgain(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 2
		c.slow = time.Minute
		cfg := elastic.Config{MaxInstances: 5, Rules: []elastic.Rule{{IdleTime: time.Minute}}}
		s := start(t, cfg, h)
		after(2 * time.Second)
		require.Len(t, c.vms, 2)
		s.stop() // before the source has answered
		c.slow = 0
		s = start(t, cfg, h)
		after(5 * time.Second)
		require.Len(t, c.vms, 2)
		require.Len(t, c.made, 1)
		require.Equal(t, 2, c.creates)
		h.place(1)
		s.stop()
		clear(h.used)
		c.fail = func(string) error { return errors.New("the cloud is away") }
		start(t, cfg, h)
		require.Len(t, h.used, 2, "at once, before any list")
		after(time.Hour)
		require.Len(t, h.used, 2)
		require.Len(t, c.vms, 2)
	})
}

func TestADeleteThatWasAskedForIsDoneAfterARestartUnlessTheVMIsInUse(t *testing.T) {
	for _, busy := range []bool{false, true} {
		scene(t, func(t *testing.T, c *cloud, h *host) {
			h.waiting = 1
			cfg := elastic.Config{MaxInstances: 5, Rules: []elastic.Rule{{IdleTime: time.Minute}}}
			s := start(t, cfg, h)
			after(5 * time.Second)
			h.waiting = 0
			c.stuck = true
			after(2 * time.Minute)
			s.stop() // before the source has done anything
			require.Len(t, c.vms, 1)
			require.Contains(t, string(h.record), `"deletes":["vm-1"]`)
			c.stuck = false
			h.state["vm-1"] = busy
			start(t, cfg, h)
			require.True(t, h.drained["vm-1"], "before a build could come there")
			after(3 * time.Second)
			if busy {
				require.Len(t, c.vms, 1)
				h.state["vm-1"] = false
				after(2 * time.Minute)
			}
			require.Empty(t, c.vms)
		})
	}
}

// A build that the state knows, and that no manager has resumed yet, keeps its VM.
func TestAVMWithABuildThatWasNotResumedYetStays(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 1
		start(t, elastic.Config{MaxInstances: 5, Rules: []elastic.Rule{{IdleTime: time.Second}}}, h)
		after(5 * time.Second)
		h.waiting, h.state["vm-1"] = 0, true
		after(time.Hour)
		require.Len(t, c.vms, 1)
		delete(h.state, "vm-1")
		after(time.Minute)
		require.Empty(t, c.vms)
	})
}

// A program that hangs, a quota, a cloud that is away.
func TestASourceThatFailsIsAskedLessAndLessAndLosesNothing(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 1
		s := start(t, elastic.Config{MaxInstances: 5}, h)
		after(5 * time.Second)
		h.place(1)
		h.waiting = 3
		c.fail = func(op string) error {
			if op == "create" {
				return fmt.Errorf("quota: %w", source.ErrTryLater)
			}
			return nil
		}
		was := c.creates
		after(time.Hour)
		require.Less(t, c.creates-was, 20)
		require.Equal(t, "quota: "+source.ErrTryLater.Error(), s.Status().Err)
		require.Contains(t, s.Status().Missing, "the source has failed")
		require.Len(t, c.vms, 1)
		c.fail = func(string) error { return errors.New("away") }
		after(time.Hour)
		require.Len(t, h.used, 1, "a failed list loses nothing")
		c.fail = nil
		after(6 * time.Minute)
		require.Len(t, c.vms, 4)
		require.Empty(t, s.Status().Err)
	})
}

func TestAnEmptyListIsBelievedWhenNoVMAnswers(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 2
		s := start(t, elastic.Config{MaxInstances: 2}, h)
		after(5 * time.Second)
		h.place(1)
		kept := maps.Clone(c.vms)
		clear(c.vms)
		h.ghosts = true
		after(time.Hour)
		require.Len(t, h.used, 2)
		require.Contains(t, s.Status().Err, "the list is empty, and VMs of the list before still answer")
		require.Zero(t, s.Status().Making)
		c.vms = kept
		after(time.Minute)
		require.Empty(t, s.Status().Err)
		clear(c.vms)
		h.ghosts = false
		after(DefaultPeriod)
		require.Len(t, h.used, 2, "one is not enough")
		after(2 * DefaultPeriod)
		require.Empty(t, h.used)
	})
}

// Complaint (garm 96): a VM that was deleted by hand, and a spot VM that vanishes with its builds.
func TestAVMIsGoneOnceTwoListsDoNotHaveIt(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 2
		start(t, elastic.Config{MaxInstances: 3}, h)
		after(5 * time.Second)
		h.place(1)
		one := c.vms["vm-1"]
		delete(c.vms, "vm-1")
		after(DefaultPeriod)
		require.Len(t, h.used, 2)
		c.vms["vm-1"] = one
		after(time.Hour)
		require.Len(t, h.used, 2, "one list may be wrong")
		delete(c.vms, "vm-1")
		after(DefaultPeriod + 3*time.Second)
		require.Len(t, h.used, 1)
		require.Contains(t, h.notes, "gone vm-1: the source does not list it any more")
		h.waiting = 1
		after(5 * time.Second)
		require.Len(t, h.used, 2, "it is replaced")
	})
}

// A VM that is half made at a crash of the cloud, or whose sshd does not start.
func TestAVMThatIsNeverReachedIsDeletedAndOthersAreMadeLessOften(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 1
		c.dud = func(id string) bool { return id != "vm-4" }
		s := start(t, elastic.Config{MaxInstances: 2}, h)
		after(2 * time.Minute)
		require.Len(t, c.vms, 1)
		after(2 * time.Minute)
		require.NotContains(t, c.vms, "vm-1", "after three times the ready-timeout")
		after(time.Hour)
		require.Contains(t, c.vms, "vm-4")
		require.Len(t, c.vms, 1)
		require.Equal(t, 1, s.Status().Ready)
		require.Equal(t, 4, c.creates)
	})
}

func TestAListThatCannotBeRightChangesNothing(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 1
		s := start(t, elastic.Config{MaxInstances: 5}, h)
		after(5 * time.Second)
		h.place(1)
		h.refuse = errors.New("the VM x is in another group")
		c.vms["x"] = &source.VM{ID: "x", State: source.Running, Address: "x"}
		delete(c.vms, "vm-1")
		after(time.Hour)
		require.Contains(t, h.used, "vm-1")
		require.NotContains(t, h.used, "x")
		require.Equal(t, "the VM x is in another group", s.Status().Err)
		require.Len(t, c.vms, 1)
	})
}

// VMs that were accepted, and that no list ever has, are not waited for without end.
func TestVMsThatNeverAppearAreAskedForAgain(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting = 1
		c.fail = func(op string) error {
			if op == "created" && c.creates == 1 {
				clear(c.vms)
			}
			return nil
		}
		start(t, elastic.Config{MaxInstances: 5}, h)
		after(lostAfter - time.Minute)
		require.Equal(t, 1, c.creates)
		after(2 * time.Minute)
		require.Equal(t, 2, c.creates)
		require.Len(t, c.vms, 1)
	})
}

// In a cluster, one manager scales. The others use the VMs, and let them take no builds as that one says.
func TestAManagerWithoutTheClaimFollows(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		h.waiting, h.others = 3, true
		h.record = []byte(`{"drained":["a"]}`)
		for _, id := range []string{"a", "b"} {
			c.vms[id] = &source.VM{ID: id, State: source.Running, Address: id}
		}
		s := start(t, elastic.Config{MaxInstances: 5}, h)
		after(time.Minute)
		require.Len(t, h.used, 2)
		require.Equal(t, map[string]bool{"a": true}, h.drained)
		require.Zero(t, c.creates)
		require.Empty(t, h.vms)
		require.False(t, s.Status().Scales)
		h.others = false // the other one has died
		after(5 * time.Second)
		require.True(t, s.Status().Scales)
		require.Len(t, h.vms, 3)
		require.Len(t, c.vms, 3)
		h.others = true // and comes back
		h.waiting = 9
		after(time.Minute)
		require.False(t, s.Status().Scales)
		require.Len(t, c.vms, 3)
	})
}

// A state that cannot be written: nothing is asked of the source.
func TestNothingIsDoneThatCannotBeKept(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		start(t, elastic.Config{MaxInstances: 5}, h)
		after(5 * time.Second)
		h.waiting, h.failing = 3, errors.New("the disk is full")
		after(time.Minute)
		require.Zero(t, c.creates)
		h.failing = nil
		after(5 * time.Second)
		require.Len(t, c.vms, 3)
	})
}

func TestVMsWhoseStateIsNotRunningTakeNoBuilds(t *testing.T) {
	scene(t, func(t *testing.T, c *cloud, h *host) {
		for id, state := range map[string]string{
			"a": source.Running, "b": source.Stopped, "c": source.Deleting, "d": source.Creating,
		} {
			c.vms[id] = &source.VM{ID: id, State: state, Address: id}
			c.ready[id] = time.Now().Add(24 * time.Hour)
		}
		s := start(t, elastic.Config{MaxInstances: 9, Rules: []elastic.Rule{{IdleTime: time.Hour, IdleCount: 1}}}, h)
		after(5 * time.Second)
		require.Equal(t, []string{"a"}, slices.Sorted(maps.Keys(h.used)))
		c.vms["a"].State = source.Deleting // as before the end of a spot VM
		after(DefaultPeriod)
		require.True(t, h.drained["a"])
		require.Contains(t, h.used, "a", "its builds go on")
		status := s.Status()
		require.Equal(t, []int{0, 2, 1}, []int{status.Ready, status.Leaving, status.Other})
	})
}

// BenchmarkSteady is a period of a group of 1,000 VMs in which nothing changes: the list, without the program of the
// source, and ten decisions.
func BenchmarkSteady(b *testing.B) {
	c := &cloud{vms: map[string]*source.VM{}}
	h := newHost(c)
	var vms []source.VM
	for i := range 1000 {
		vms = append(vms, source.VM{
			ID: fmt.Sprintf("vm-%d", i), State: source.Running, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250),
			Labels: map[string]string{"size": "small", "zone": "a"}, HostKeys: []string{"ssh-ed25519 AAAA"},
		})
	}
	s, err := New(Config{
		Name: "g", Policy: elastic.Config{MaxInstances: 1000, Rules: []elastic.Rule{{IdleCount: 1000}}}, Source: c,
		Logger: slog.New(slog.DiscardHandler),
	}, h)
	require.NoError(b, err)
	now := time.Now()
	period := func() {
		require.NoError(b, s.take(b.Context(), vms, now))
		for range 10 {
			require.NoError(b, s.claim(b.Context()))
			s.applyDrains()
			s.look, err = h.Look(b.Context())
			require.NoError(b, err)
			s.decide(b.Context(), now)
		}
	}
	period()
	b.ReportAllocs()
	for b.Loop() {
		period()
	}
	require.Equal(b, 1000, s.Status().Ready)
}
