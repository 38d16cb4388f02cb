package instance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/pool"
)

// fleet is a group whose closed connections are noted.
type fleet struct {
	*Group
	closed []string
}

func newFleet(t *testing.T, all ...Instance) *fleet {
	t.Helper()
	g, err := NewGroup(all...)
	require.NoError(t, err)
	f := &fleet{Group: g}
	g.provide(func(id string, cause error) { f.closed = append(f.closed, fmt.Sprintf("%s: %v", id, cause)) }, 0)
	return f
}

func vm(id string, capacity int) Instance {
	return Instance{ID: id, Addr: id + ":22", SSH: loginAs("ci"), Capacity: capacity}
}

// loginAs returns a login that no server is asked for.
func loginAs(user string) mux.Config {
	return mux.Config{User: user, Auth: []login.Auth{login.Password("x")}, HostKeys: login.InsecureHostKeys()}
}

// ask asks for a slot and returns where it comes to.
func (f *fleet) ask(t *testing.T, tried ...string) <-chan served {
	t.Helper()
	got := make(chan served, 1)
	go func() {
		s, err := f.acquire(t.Context(), "build", tried...)
		got <- served{s, err}
	}()
	synctest.Wait()
	return got
}

func requireWaits(t *testing.T, asked <-chan served) {
	t.Helper()
	select {
	case s := <-asked:
		require.Fail(t, "it did not wait", "%+v", s)
	default:
	}
}

func requireOn(t *testing.T, id string, asked <-chan served) *slot {
	t.Helper()
	select {
	case s := <-asked:
		require.NoError(t, s.err)
		require.Equal(t, id, s.slot.placement.ID)
		return s.slot
	default:
		require.Fail(t, "it waits")
		return nil
	}
}

func (f *fleet) state(id string) State {
	for _, in := range f.stat().Instances {
		if in.ID == id {
			return in.State
		}
	}
	return "gone"
}

func (f *fleet) placement(id string) *placement { return f.byID[id].placement }

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
	synctest.Wait()
}

// fail is the dial of a host that fails at once.
func (f *fleet) fail(h *host, permanent bool) {
	err := errors.New("refused")
	f.attemptFailed(h, err, permanent)
	_ = f.dialFailed(h, &dialError{h.id, 1, permanent, err})
}

// failBuild is a build that cannot reach its instance.
func (f *fleet) failBuild(s *slot, permanent bool) {
	f.fail(s.entry.host, permanent)
	s.giveBack()
}

func TestAnInstanceThatCannotBeReachedIsQuarantinedAndComesBackByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 2))
		f.failBuild(requireOn(t, "a", f.ask(t)), false)
		require.Equal(t, Quarantined, f.state("a"))
		stat := f.stat().Instances[0]
		require.Equal(t, "refused", stat.Reason)
		requireBetween(t, backoffBase/2, backoffBase, time.Until(stat.RetryAt))

		first, second := f.ask(t), f.ask(t)
		requireWaits(t, first)
		pass(time.Until(stat.RetryAt))
		s := requireOn(t, "a", first)
		requireWaits(t, second) // one build tries whether it is back
		f.failBuild(s, false)
		pass(backoffBase - 1)
		requireWaits(t, second) // the pause has doubled
		pass(backoffBase + 1)
		s = requireOn(t, "a", second)
		third := f.ask(t)
		requireWaits(t, third)
		f.reached(s)
		synctest.Wait()
		require.Equal(t, Ready, f.state("a"))
		requireOn(t, "a", third)
	})
}

// Symptom: a VM whose Docker daemon was down had room at all times, so that it got all builds, and failed them.
func TestAnInstanceThatCannotStartBuildsGetsOneAtATimeUntilOneStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 2))
		failed := requireOn(t, "a", f.ask(t))
		f.reached(failed)
		f.started(failed, errors.New("no daemon"))
		failed.release()
		require.Equal(t, Quarantined, f.state("a"))
		require.Equal(t, "no daemon", f.stat().Instances[0].Reason)

		first, second := f.ask(t), f.ask(t)
		requireWaits(t, first)
		pass(backoffBase)
		s := requireOn(t, "a", first)
		f.connected("a", nil) // its connection was idle, and closed
		f.reached(s)
		synctest.Wait()
		requireWaits(t, second) // it was reached before, too
		f.started(s, nil)
		synctest.Wait()
		requireOn(t, "a", second)
		require.Equal(t, Ready, f.state("a"))
	})
}

// Symptom: a moment in which no step runner started set a VM with many builds aside for half a minute.
func TestBuildsThatFailToStartAtOnceAreOneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 10))
		var all []*slot
		for range 10 {
			all = append(all, requireOn(t, "a", f.ask(t)))
		}
		for _, s := range all {
			f.started(s, errors.New("disk full"))
			s.release()
		}
		stat := f.stat().Instances[0]
		require.Equal(t, Quarantined, stat.State)
		requireBetween(t, backoffBase/2, backoffBase, time.Until(stat.RetryAt))
		asked := f.ask(t)
		pass(backoffBase)
		f.started(requireOn(t, "a", asked), errors.New("disk full"))
		requireBetween(t, backoffBase, 2*backoffBase, time.Until(f.stat().Instances[0].RetryAt))
	})
}

func TestAQuarantineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1))
		for range 20 {
			asked := f.ask(t)
			pass(backoffMax)
			f.failBuild(requireOn(t, "a", asked), false)
		}
		requireBetween(t, backoffMax/2, backoffMax, time.Until(f.stat().Instances[0].RetryAt))
	})
}

func TestBuildsDoNotWaitForAnInstanceThatRefusesTheLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1))
		s := requireOn(t, "a", f.ask(t))
		waiting := f.ask(t)
		requireWaits(t, waiting)
		f.failBuild(s, true)
		synctest.Wait()
		require.ErrorContains(t, (<-waiting).err, "no instance can be reached: instance a: connect a: refused")
		require.ErrorContains(t, (<-f.ask(t)).err, "no instance can be reached")
		pass(backoffMax)
		requireOn(t, "a", f.ask(t))
	})
}

func TestABuildDoesNotGetAnInstanceItHasTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 5), vm("b", 1))
		picky := f.ask(t, "a")
		s := requireOn(t, "b", picky)
		waits := f.ask(t, "a")
		requireWaits(t, waits)
		requireOn(t, "a", f.ask(t)) // others pass by
		s.release()
		synctest.Wait()
		requireOn(t, "b", waits)
		require.True(t, f.hasOther(demand{tried: []string{"a"}}, false))
		require.False(t, f.hasOther(demand{tried: []string{"a", "b"}}, false))
		require.ErrorContains(t, (<-f.ask(t, "a", "b")).err, "no other instance")
	})
}

func TestAnInstanceWhoseConnectionDiedComesAfterAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 9), vm("b", 1))
		f.lost("a", errors.New("reset"))
		require.Equal(t, Suspect, f.state("a"))
		requireOn(t, "b", f.ask(t))
		s := requireOn(t, "a", f.ask(t))
		next := f.ask(t)
		requireWaits(t, next)
		f.connected(s.placement.ID, nil)
		synctest.Wait()
		requireOn(t, "a", next)
	})
}

// Symptom: builds waited for a kept lease, which connects only when somebody uses it.
func TestAKeptLeaseIsNoTrialOfAnInstanceWhoseConnectionDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 5))
		f.lost("a", errors.New("reset"))
		_, err := f.occupy("lease", "a", time.Time{})
		require.NoError(t, err)
		requireOn(t, "a", f.ask(t))
	})
}

func TestAnInstanceTakesNoMoreBuildsThanItMayInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := vm("a", 2)
		in.MaxUses = 3
		f := newFleet(t, in)
		s, other := requireOn(t, "a", f.ask(t)), requireOn(t, "a", f.ask(t))
		other.giveBack() // it made no use of it
		requireOn(t, "a", f.ask(t)).release()
		last := requireOn(t, "a", f.ask(t))
		waiting := f.ask(t)
		require.ErrorContains(t, (<-waiting).err, "a has had its 3 uses")
		s.release()
		require.Empty(t, f.closed)
		require.Equal(t, UsedUp, f.state("a"))
		last.release()
		require.Equal(t, []string{"a: the instance takes no more builds: it is used up"}, f.closed)

		in.MaxUses = 4
		require.NoError(t, f.Update([]Instance{in}))
		requireOn(t, "a", f.ask(t))
	})
}

func TestADrainedInstanceEndsItsBuildsAndTakesNoNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 2))
		s := requireOn(t, "a", f.ask(t))
		require.NoError(t, f.Drain("a"))
		require.NoError(t, f.Drain("a"))
		waiting := f.ask(t)
		requireWaits(t, waiting)
		require.Equal(t, Draining, f.state("a"))
		s.release()
		require.Equal(t, []string{"a: the instance takes no more builds: it is draining"}, f.closed)
		require.NoError(t, f.Undrain("a"))
		synctest.Wait()
		requireOn(t, "a", waiting)
		require.ErrorContains(t, f.Drain("b"), `there is no instance "b"`)
		require.ErrorContains(t, f.Undrain("b"), `there is no instance "b"`)
		require.Len(t, f.closed, 1)
	})
}

// A VM that left the inventory for a while took builds again when it came back.
func TestADrainHoldsForAnInstanceThatLeavesTheSetAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1), vm("b", 1))
		require.NoError(t, f.Drain("a"))
		require.NoError(t, f.Update([]Instance{vm("b", 1)}))
		require.NoError(t, f.Update([]Instance{vm("a", 1), vm("b", 1)}))
		require.Equal(t, Draining, f.state("a"))
		requireOn(t, "b", f.ask(t))
		requireWaits(t, f.ask(t))

		require.NoError(t, f.Update([]Instance{vm("b", 1)}))
		require.ErrorIs(t, f.Undrain("a"), ErrUnknown)
		require.NoError(t, f.Update([]Instance{vm("a", 1), vm("b", 1)}))
		require.Equal(t, Ready, f.state("a"))
		require.NoError(t, f.Update([]Instance{vm("b", 1)}))
		require.ErrorIs(t, f.Drain("a"), ErrUnknown)
		require.NoError(t, f.Update([]Instance{vm("a", 1), vm("b", 1)}))
		require.Equal(t, Draining, f.state("a"), "it was drained while it was away")
		_, _, err := f.remove("a")
		require.NoError(t, err)
		require.NoError(t, f.Update([]Instance{vm("a", 1), vm("b", 1)}))
		require.Equal(t, Ready, f.state("a"), "the VM was gone: this is another")
	})
}

func TestAnInstanceThatLeavesTheSetEndsItsBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1), vm("b", 1))
		s := requireOn(t, "a", f.ask(t))
		require.NoError(t, f.Update([]Instance{vm("b", 1), vm("c", 1)}))
		require.Equal(t, Removed, f.state("a"))
		require.NotNil(t, f.hosts["a"], "its builds may connect anew")
		requireOn(t, "b", f.ask(t))
		requireOn(t, "c", f.ask(t))
		waiting := f.ask(t)
		requireWaits(t, waiting)
		require.Empty(t, f.closed)
		s.release()
		s.release()
		require.Equal(t, []string{"a: the instance takes no more builds: it is removed"}, f.closed)
		require.Equal(t, State("gone"), f.state("a"))
		require.Nil(t, f.hosts["a"])

		require.NoError(t, f.Update([]Instance{vm("b", 1), vm("c", 1), vm("a", 1)}))
		synctest.Wait()
		requireOn(t, "a", waiting)
	})
}

func TestAnInstanceThatComesBackBeforeItsBuildsEndedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 2), vm("b", 1))
		s := requireOn(t, "a", f.ask(t))
		require.NoError(t, f.Update([]Instance{vm("b", 1)}))
		require.NoError(t, f.Update([]Instance{vm("a", 2), vm("b", 1)}))
		s.release()
		require.Empty(t, f.closed)
		require.Equal(t, Ready, f.state("a"))
	})
}

func TestAnInstanceThatIsReachedInAnotherWayGetsANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1))
		s := requireOn(t, "a", f.ask(t))
		same := vm("a", 7)
		same.SSH.KeepaliveInterval = time.Second // no other way in
		require.NoError(t, f.Update([]Instance{same}))
		require.Empty(t, f.closed)
		require.Same(t, s.placement.vm, f.placement("a").vm)
		require.Equal(t, time.Second, f.placement("a").SSH.KeepaliveInterval, "for the next connection")
		require.Equal(t, 7, f.stat().Instances[0].Capacity)
		for name, change := range map[string]func(*Instance){
			"address":   func(in *Instance) { in.Addr = "x:1" },
			"user":      func(in *Instance) { in.SSH.User = "other" },
			"jump host": func(in *Instance) { in.Jump = jumpHost("j", "j:22", nil) },
			"runner":    func(in *Instance) { in.Runner = []string{"x"} },
			"temp dir":  func(in *Instance) { in.TempDir = "/x" },
			"revision":  func(in *Instance) { in.Revision = "2" },
		} {
			require.NoError(t, f.Update([]Instance{vm("a", 7)}))
			f.closed = nil
			f.lost("a", errors.New("reset"))
			in := vm("a", 7)
			change(&in)
			require.NoError(t, f.Update([]Instance{in}))
			require.Equal(t, []string{"a: the instance's configuration changed"}, f.closed, name)
			require.NotSame(t, s.placement.vm, f.placement("a").vm, name)
			require.Equal(t, Ready, f.state("a"), "%s: the old failures say nothing of it", name)
		}
		require.Equal(t, "a:22", s.placement.Addr, "the build's own view stays")
		require.Equal(t, 1, f.stat().Instances[0].Used)
	})
}

func TestASetThatMakesNoSenseChangesNothing(t *testing.T) {
	f := newFleet(t, vm("a", 1))
	require.ErrorContains(t, f.Update([]Instance{vm("b", 1), vm("b", 1)}), "there are two of this ID")
	require.ErrorContains(t, f.Update([]Instance{{ID: "b", Addr: "x:1", MaxUses: -1}}), "-1 uses")
	require.Len(t, f.Instances(), 1)
	require.Equal(t, "a", f.Instances()[0].ID)
}

// watch returns a function for Follow that tells one set and then waits.
func watch(set ...Instance) func(context.Context, func([]Instance) error) error {
	return func(ctx context.Context, update func([]Instance) error) error {
		if err := update(set); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

func TestBuildsWaitForWhatASourceBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{Group: &Group{}}
		require.ErrorContains(t, (<-f.ask(t)).err, "the group has no instances")
		f.follow(1)
		waiting := f.ask(t)
		requireWaits(t, waiting)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Follow(ctx, watch(vm("a", 1))) }()
		synctest.Wait()
		requireOn(t, "a", waiting)
		end := errors.New("enough")
		cancel(end)
		require.ErrorIs(t, <-ended, end)
		waiting = f.ask(t)
		require.NoError(t, f.Update(nil))
		requireWaits(t, waiting)
		f.follow(-1)
		synctest.Wait()
		require.ErrorContains(t, (<-waiting).err, "no instances", "no source is left")
	})
}

func TestCloseReasonHasFewWords(t *testing.T) {
	for want, cause := range map[string]error{
		"idle":         pool.ErrIdle,
		"age":          pool.ErrExpired,
		"shutdown":     fmt.Errorf("x: %w", pool.ErrClosed),
		"reconfigured": errChanged,
		"not needed":   outOfServiceError(UsedUp),
		"keepalive":    &mux.ConnError{Op: "keepalive", Err: errors.New("x")},
		"read":         &mux.ConnError{Op: "read", Err: errors.New("x")},
		"write":        &mux.ConnError{Op: "write", Err: errors.New("x")},
		"other":        &mux.ConnError{Op: "dial unix /secret", Err: errors.New("x")},
	} {
		require.Equal(t, want, CloseReason(cause))
	}
	require.Equal(t, "other", CloseReason(nil))
}

func TestAFailureOfTheOldWayIsNoFailureOfTheNew(t *testing.T) {
	f := newFleet(t, vm("a", 1))
	old := f.hosts["a"]
	in := vm("a", 1)
	in.Addr = "elsewhere:22"
	require.NoError(t, f.Update([]Instance{in}))
	f.fail(old, true)
	require.Equal(t, Ready, f.state("a"))
}

func TestAFailureCountsAlsoAfterAnUpdateThatLeavesTheWayAsItIs(t *testing.T) {
	f := newFleet(t, vm("a", 1))
	old := f.hosts["a"]
	require.NoError(t, f.Update([]Instance{vm("a", 2)}))
	f.fail(old, true)
	require.Equal(t, Quarantined, f.state("a"))
}

func TestADeadConnectionMakesItsInstanceSuspectAndNoOther(t *testing.T) {
	f := newFleet(t, vm("a", 1))
	f.lost("b", errors.New("it left"))
	require.Equal(t, Ready, f.state("a"))
	f.lost("a", &mux.ConnError{Op: "read", Addr: "a:22", Err: errors.New("reset")})
	require.Equal(t, Suspect, f.state("a"))
}
