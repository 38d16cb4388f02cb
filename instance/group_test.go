package instance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

func group(t *testing.T, capacities ...int) *Group {
	t.Helper()
	var all []Instance
	for i, c := range capacities {
		all = append(all, Instance{ID: string(rune('a' + i)), Addr: "127.0.0.1:22", SSH: loginAs("ci"), Capacity: c})
	}
	g, err := NewGroup(all...)
	require.NoError(t, err)
	return g
}

func take(t *testing.T, g *Group) *slot {
	t.Helper()
	s, err := g.acquire(t.Context(), "b")
	require.NoError(t, err)
	return s
}

func TestSlotsSpreadOverTheInstancesThatHaveMostFree(t *testing.T) {
	g := group(t, 1, 3, 2)
	var got string
	for range 6 {
		got += take(t, g).placement.ID
	}
	require.Equal(t, "bbcabc", got)
}

func TestWaitersGetSlotsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group(t, 1)
		s := take(t, g)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				s, err := g.acquire(context.Background(), "b")
				if err == nil {
					order <- i
					s.release()
				}
			}()
			synctest.Wait()
		}
		s.release()
		s.release() // again: no second slot comes of it
		synctest.Wait()
		for want := range 3 {
			require.Equal(t, want, <-order)
		}
		require.Zero(t, g.stat().Instances[0].Used)
	})
}

// A build that waits when its run starts no more gets no slot, even if one becomes free before it has noticed.
func TestWaiterWhoseContextHasEndedTakesNoSlot(t *testing.T) {
	for range 100 { // by chance it took one
		g := group(t, 1)
		s := take(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		place := g.queue("b", "", demand{}, false)
		cancel()
		s.release()
		_, err := g.await(ctx, place)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, g.stat().Instances[0].Used)
	}
}

func TestWaiterThatLeavesLosesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group(t, 1)
		s := take(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := g.acquire(ctx, "b")
			left <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		s.release()
		take(t, g).release()
	})
}

func TestSlotGrantedToAWaiterThatIsJustLeavingGoesToTheNext(t *testing.T) {
	for range 200 {
		g := group(t, 1)
		s := take(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if s, err := g.acquire(ctx, "b"); err == nil {
				s.release()
			}
		}()
		go cancel()
		s.release()
		<-done
		take(t, g).release()
	}
}

func TestNewGroupRefusesWhatCannotWork(t *testing.T) {
	good := vm("a", 0)
	at := func(addr string) Instance { return Instance{ID: "a", Addr: addr, SSH: loginAs("ci")} }
	for want, all := range map[string][]Instance{
		"at least one":   nil,
		"has no ID":      {{Addr: "x:1"}},
		"two of this ID": {good, good},
		"no address":     {{ID: "a"}},
		"capacity -1":    {{ID: "a", Addr: "x:1", Capacity: -1}},
		`instance a: address "x" is not host:port`:           {at("x")},
		`address "x:" is not host:port`:                      {at("x:")},
		"instance a: mux: Config.User is empty":              {{ID: "a", Addr: "x:1"}},
		`jump host j: address "::1" is not host:port`:        {behind("a", jumpHost("j", "::1", nil))},
		"instance a: jump host j: mux: Config.User is empty": {behind("a", &Instance{ID: "j", Addr: "x:1"})},
	} {
		_, err := NewGroup(all...)
		require.ErrorContains(t, err, want)
	}
	named := at("a name for DialNet")
	named.SSH.DialNet = (&mux.Conn{}).DialNet
	_, err := NewGroup(named)
	require.NoError(t, err)
	g, err := NewGroup(good)
	require.NoError(t, err)
	require.Equal(t, 1, g.stat().Instances[0].Capacity, "the default")
	_, err = NewProvider(Config{Group: g, Route: "tunnel"})
	require.ErrorContains(t, err, `instance: Config.Route: unknown route "tunnel": use auto, `)
}

func TestClassify(t *testing.T) {
	live := t.Context()
	canceled, cancel := context.WithCancel(live)
	cancel()
	expired, cancel := context.WithTimeout(live, -1)
	defer cancel()
	lost := &mux.ConnError{Op: "read", Addr: "vm:22", Err: errors.New("reset")}
	for _, test := range []struct {
		name   string
		ctx    context.Context
		err    error
		reason FailureReason
		code   int
	}{
		{"cancelled", canceled, canceled.Err(), JobCanceled, 0},
		{"timed out", expired, expired.Err(), JobExecutionTimeout, 0},
		{"lost", live, lost, RunnerSystemFailure, 0},
		{"lost while cancelled", canceled, lost, RunnerSystemFailure, 0},
		{"serve did not start", live, &connector.ServeError{ExitCode: 127, Err: errors.New("x")}, RunnerSystemFailure, 127},
		{"serve vanished", live, &connector.ServeError{ExitCode: -1, Err: errors.New("x")}, RunnerSystemFailure, 0},
		{"not valid", live, &connector.RequestError{Message: "x"}, ConfigurationError, 0},
		{"a dial that timed out", live, context.DeadlineExceeded, RunnerSystemFailure, 0},
		{"anything else", live, errors.New("x"), RunnerSystemFailure, 0},
	} {
		failed := (*BuildError)(nil)
		require.ErrorAs(t, classify(test.ctx, test.err), &failed, test.name)
		require.Equal(t, test.reason, failed.Reason, test.name)
		require.Equal(t, test.code, failed.ExitCode, test.name)
	}
	require.NoError(t, classify(live, nil))
	already := &BuildError{Reason: ScriptFailure, ExitCode: 1, Err: errors.New("x")}
	require.Same(t, already, classify(canceled, already))
}

func TestOutcome(t *testing.T) {
	require.NoError(t, outcome(connector.Result{Status: connector.Succeeded}))
	for reason, r := range map[FailureReason]connector.Result{
		ScriptFailure:       {Status: connector.Failed, ExitCode: 7, Message: "exit status 7"},
		JobCanceled:         {Status: connector.Cancelled},
		JobExecutionTimeout: {Status: connector.Failed, TimedOut: true},
	} {
		failed := (*BuildError)(nil)
		require.ErrorAs(t, outcome(r), &failed)
		require.Equal(t, reason, failed.Reason)
		require.Equal(t, r.ExitCode, failed.ExitCode)
	}
	// What the VM failed of, or the step runner, also where it ended the job of itself.
	for _, r := range []connector.Result{
		{Status: connector.Failed, Message: "too many open files", System: true},
		{Status: connector.Cancelled, Message: "the step runner is shutting down", System: true},
	} {
		failed := (*BuildError)(nil)
		require.ErrorAs(t, outcome(r), &failed)
		require.Equal(t, RunnerSystemFailure, failed.Reason)
		require.Zero(t, failed.ExitCode)
		require.EqualError(t, failed.Err, r.Message)
	}
	// What is not known is no success.
	require.Error(t, outcome(connector.Result{}))
}

// A job that is not valid had a reason that GitLab does not know: configuration_error.
//
//stepmux:faults executor | A job that is not valid has a reason that GitLab does not know
func TestReasonsAreGitLabsWords(t *testing.T) {
	require.Equal(t, []FailureReason{
		"script_failure", "runner_system_failure", "runner_configuration_error", "job_canceled", "job_execution_timeout",
	}, []FailureReason{ScriptFailure, RunnerSystemFailure, ConfigurationError, JobCanceled, JobExecutionTimeout})
}

// acquire takes a slot for a build that does not go to the tried hosts.
func (g *Group) acquire(ctx context.Context, build string, tried ...string) (*slot, error) {
	return g.await(ctx, g.queue(build, "", demand{tried: tried}, false))
}

func TestABuildGetsTheInstanceThatItAsksFor(t *testing.T) {
	in := func(id, zone string) Instance {
		return Instance{ID: id, Addr: "x:22", SSH: loginAs("ci"), Labels: map[string]string{"zone": zone}}
	}
	g, err := NewGroup(in("a", "1"), in("b", "1"), in("c", "2"))
	require.NoError(t, err)
	take := func(of demand) (string, error) {
		s, err := g.await(t.Context(), g.queue("build", "", of, false))
		if err != nil {
			return "", err
		}
		return s.placement.ID, nil
	}
	one := map[string]string{"zone": "1"}
	for _, want := range []struct {
		of  demand
		ids []string
		err string
	}{
		{demand{on: "b"}, []string{"b"}, ""},
		{demand{labels: one}, []string{"a"}, ""},
		{demand{on: "a", labels: map[string]string{"zone": "2"}}, nil, `there is no instance "a"`},
		{demand{labels: map[string]string{"zone": "3", "a": ""}}, nil, "there is no instance with the labels a=, zone=3"},
		{demand{on: "d"}, nil, `there is no instance "d"`},
		{demand{labels: map[string]string{"zone": "2"}}, []string{"c"}, ""},
	} {
		id, err := take(want.of)
		if want.err != "" {
			require.ErrorContains(t, err, want.err)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, want.ids, id)
	}
}

// With four builds for each of 1,000 instances, each event of a build took 30 ms under the lock of the group.
func BenchmarkBuildsThatWaitForCertainInstances(b *testing.B) {
	took := func(of func(i int) demand) time.Duration {
		g, err := NewGroup(vms("vm", 1000)...)
		require.NoError(b, err)
		start := time.Now()
		waiting := make([]*waiter, 2000)
		for i := range waiting {
			waiting[i] = g.queue("b", "", of(i), false).Value.(*waiter)
		}
		for _, w := range waiting { // each release serves one that waits
			got := <-w.served
			require.NoError(b, got.err)
			got.slot.release()
		}
		return time.Since(start)
	}
	var anywhere, there time.Duration
	for b.Loop() {
		anywhere += took(func(int) demand { return demand{} })
		there += took(func(i int) demand { return demand{on: fmt.Sprintf("vm-%d", i%1000)} })
	}
	b.ReportMetric(there.Seconds()/anywhere.Seconds(), "certain-x/any")
}

// Symptom: a build that waited for one of two such VMs kept those for the other from theirs.
func TestBuildsForLabelsThatReadAlikeDoNotWaitForOneAnother(t *testing.T) {
	odd, even := map[string]string{"a": "1, b=2"}, map[string]string{"a": "1", "b": "2"}
	g, err := NewGroup(Instance{ID: "odd", Addr: "x:22", SSH: loginAs("ci"), Labels: odd},
		Instance{ID: "even", Addr: "y:22", SSH: loginAs("ci"), Labels: even})
	require.NoError(t, err)
	take(t, g)
	s := take(t, g)
	require.Equal(t, "even", s.placement.ID)
	g.queue("b", "", demand{labels: odd}, false)
	next := g.queue("b", "", demand{labels: even}, false)
	s.release()
	s, err = g.await(sshtest.Within(t), next)
	require.NoError(t, err)
	require.Equal(t, "even", s.placement.ID)
}

// Symptom: a step runner that started took the instance out of its quarantine, and it failed the jobs of all builds.
func TestAnInstanceThatFailsJobsIsQuarantinedUntilAProbeRunsItsJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group(t, 4, 1)
		cause := errors.New("the disk is full")
		first, second := take(t, g), take(t, g)
		require.Equal(t, "a", first.placement.ID)
		g.failed(first, cause, true)
		g.failed(second, cause, true)
		state := func() (State, int) { return g.stat().Instances[0].State, g.stat().Held }
		is := func(want State, held int) {
			t.Helper()
			state, n := state()
			require.Equal(t, want, state)
			require.Equal(t, held, n)
		}
		is(Quarantined, 0)
		require.Equal(t, "the disk is full", g.stat().Instances[0].Reason)
		first.release()
		second.release()
		other := take(t, g)
		require.Equal(t, "b", other.placement.ID)
		probes := make(chan *slot, 2)
		for range 2 {
			go func() {
				s, err := g.acquire(t.Context(), "probe")
				if err == nil {
					probes <- s
				}
			}()
		}
		synctest.Wait()
		is(Quarantined, 0)      // the second instance is only full
		time.Sleep(backoffBase) //nolint:forbidigo // in a bubble
		probe := <-probes
		require.Equal(t, "a", probe.placement.ID)
		g.started(probe, nil)
		is(Suspect, 0)
		require.True(t, g.isProbe(probe))
		g.failed(other, cause, true)
		is(Suspect, 1) // one waits, and no instance that fits is sound
		g.worked(probe)
		is(Ready, 0)
		<-probes
	})
}

func TestOneGoodJobBetweenBadOnesKeepsTheOnlyInstanceInService(t *testing.T) {
	g := group(t, 1)
	s := take(t, g)
	cause := errors.New("the disk is full")
	for range maxFaults - 1 {
		g.failed(s, cause, false)
	}
	g.worked(s)
	for range maxFaults - 1 {
		g.failed(s, cause, false)
		g.started(s, nil)
	}
	require.Equal(t, Ready, g.stat().Instances[0].State)
	g.failed(s, cause, false)
	require.Equal(t, Quarantined, g.stat().Instances[0].State)
}

func TestABuildKeepsItsPlaceInTheQueueUntilItPreparesOrIsCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := group(t, 1)
		p, err := NewProvider(Config{Group: g})
		require.NoError(t, err)
		defer p.Close()
		s := take(t, g)
		first, second := p.Executor(Build{ID: "first"}), p.Executor(Build{ID: "second"})
		first.Queue(nil)
		second.Queue(nil)
		got := make(chan *slot)
		go func() {
			s, _ := g.acquire(context.Background(), "last")
			got <- s
		}()
		synctest.Wait()
		require.Equal(t, []string{"first", "second", "last"}, g.Waiting())
		require.NoError(t, second.Cleanup(t.Context()))
		require.Equal(t, []string{"first", "last"}, g.Waiting())
		s.release()
		require.Equal(t, []string{"last"}, g.Waiting(), "the first has the slot")
		require.NoError(t, first.Cleanup(t.Context()), "without Prepare")
		s = <-got
		require.NotNil(t, s)
		first.Queue(nil)
		require.Empty(t, g.Waiting(), "it was cleaned up")
		s.release()
		require.Zero(t, p.Stat().Instances[0].Used)
	})
}
