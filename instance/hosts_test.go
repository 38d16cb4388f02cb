package instance

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/mux"
)

// behind returns an instance that is reached through a jump host.
func behind(id string, jump *Instance) Instance {
	in := vm(id, 1)
	in.Jump = jump
	return in
}

func jumpHost(id, addr string, via *Instance) *Instance {
	return &Instance{ID: id, Addr: addr, SSH: loginAs("ci"), Jump: via}
}

func bastion(addr string) *Instance { return jumpHost("bastion", addr, nil) }

// jumps returns the IDs of the jump hosts that are no instances.
func (f *fleet) jumps() []string {
	var all []string
	for _, j := range f.stat().JumpHosts {
		all = append(all, j.ID)
	}
	return all
}

// takeClosed returns the connections that were closed, in order.
func (f *fleet) takeClosed() []string {
	all := slices.Sorted(slices.Values(f.closed))
	f.closed = nil
	return all
}

func TestAJumpHostGoesWithTheLastInstanceBehindIt(t *testing.T) {
	f := newFleet(t, behind("a", bastion("b:22")), behind("b", bastion("b:22")))
	require.Equal(t, []string{"bastion"}, f.jumps())
	require.NoError(t, f.Update([]Instance{behind("a", bastion("b:22"))}))
	require.Equal(t, []string{"b: the instance takes no more builds: it is removed"}, f.takeClosed())
	s := take(t, f.Group)
	require.NoError(t, f.Update([]Instance{vm("c", 1)}))
	require.Empty(t, f.closed)
	require.Equal(t, []string{"bastion"}, f.jumps(), "a build may connect anew")
	require.Len(t, f.hosts["a"].path, 2)
	s.release()
	require.Equal(t, []string{
		"a: the instance takes no more builds: it is removed",
		"bastion: no instance is reached through it any more",
	}, f.takeClosed())
	require.Empty(t, f.jumps())
	require.Nil(t, f.hosts["bastion"])
	require.Equal(t, "not needed", CloseReason(errNotNeeded))
}

func TestAJumpHostThatIsReachedInAnotherWayChangesTheWayToThoseBehindIt(t *testing.T) {
	for name, other := range map[string]*Instance{
		"address":   bastion("other:22"),
		"user":      {ID: "bastion", Addr: "b:22", SSH: loginAs("other")},
		"revision":  {ID: "bastion", Addr: "b:22", SSH: loginAs("ci"), Revision: "2"},
		"jump host": jumpHost("bastion", "b:22", jumpHost("first", "first:22", nil)),
	} {
		f := newFleet(t, behind("a", bastion("b:22")), vm("b", 1))
		f.connected("bastion", nil)
		require.NoError(t, f.Update([]Instance{behind("a", bastion("b:22")), vm("b", 1)}))
		require.Empty(t, f.closed)
		require.NoError(t, f.Update([]Instance{behind("a", other), vm("b", 1)}))
		require.Equal(t, []string{"a: " + errChanged.Error(), "bastion: " + errChanged.Error()}, f.takeClosed(), name)
		require.Equal(t, 1, f.stat().JumpHosts[0].Connections, "counts stay")
	}
}

func TestAnUpdateWithALoopChangesNothing(t *testing.T) {
	f := newFleet(t, vm("a", 1), behind("b", &Instance{ID: "a"}))
	loop := []Instance{behind("a", &Instance{ID: "b"}), behind("b", &Instance{ID: "a"}), vm("c", 1)}
	require.ErrorContains(t, f.Update(loop), "form a loop: ")
	err := f.Update([]Instance{behind("b", &Instance{ID: "a"})})
	require.ErrorContains(t, err, "jump host a has no address and is no instance")
	require.Len(t, f.Instances(), 2)
	require.Nil(t, f.hosts["c"])
	require.Len(t, f.hosts["a"].path, 1)
	require.Empty(t, f.closed)
}

func TestADrainedInstanceStaysConnectedWhileOthersAreBehindIt(t *testing.T) {
	f := newFleet(t, vm("near", 1), behind("far", &Instance{ID: "near"}))
	require.NoError(t, f.Drain("near"))
	require.Empty(t, f.closed)
	require.NoError(t, f.Update([]Instance{vm("near", 1), behind("far", &Instance{ID: "near"}), vm("new", 1)}))
	require.Empty(t, f.closed, "it was closed when the set was read again")
	require.NoError(t, f.Update([]Instance{vm("near", 1), vm("far", 1)}))
	require.Equal(t, []string{
		"far: " + errChanged.Error(),
		"near: the instance takes no more builds: it is draining",
		"new: the instance takes no more builds: it is removed",
	}, f.takeClosed())
}

// Its connection stayed, because the hosts behind it were counted after it was looked at.
func TestADrainedInstanceIsClosedWithTheLastBuildBehindIt(t *testing.T) {
	f := newFleet(t, vm("near", 1), behind("far", &Instance{ID: "near"}))
	require.NoError(t, f.Drain("near"))
	s := take(t, f.Group)
	require.Equal(t, "far", s.placement.ID)
	require.NoError(t, f.Update([]Instance{vm("near", 1)}))
	require.Empty(t, f.closed, "the build may connect anew")
	s.release()
	require.Equal(t, []string{
		"far: the instance takes no more builds: it is removed",
		"near: the instance takes no more builds: it is draining",
	}, f.takeClosed())
}

func TestAnInstanceThatIsGoneMayGoOnAsAJumpHost(t *testing.T) {
	f := newFleet(t, vm("near", 1), behind("far", jumpHost("near", "near:22", nil)))
	_, needed, err := f.remove("near")
	require.NoError(t, err)
	require.True(t, needed)
	require.Empty(t, f.closed)
	require.Equal(t, []string{"near"}, f.jumps())

	f = newFleet(t, vm("near", 1), behind("far", &Instance{ID: "near"}))
	_, _, err = f.remove("near")
	require.EqualError(t, err, "remove instance near: instance far: jump host near has no address and is no instance")
	require.Len(t, f.Instances(), 2)
}

func TestABuildDoesNotReachAnInstanceThatIsGone(t *testing.T) {
	f := newFleet(t, behind("a", bastion("b:22")))
	s := take(t, f.Group)
	was, needed, err := f.remove("a")
	require.NoError(t, err)
	require.False(t, needed)
	require.Equal(t, "a:22", was.Addr)
	require.Nil(t, f.hosts["a"])
	require.Len(t, f.takeClosed(), 2)
	require.Equal(t, Removed, f.state("a"))
	s.release()
	require.Equal(t, State("gone"), f.state("a"))
	require.Empty(t, f.closed)
}

func TestBuildsWaitWhereInstancesAreAddedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, vm("a", 1))
		_, _, err := f.remove("a")
		require.NoError(t, err)
		waiting := f.ask(t)
		requireWaits(t, waiting)
		require.ErrorContains(t, f.add(Instance{ID: "b"}), "no address")
		require.NoError(t, f.add(vm("b", 1)))
		synctest.Wait()
		requireOn(t, "b", waiting)
	})
}

func TestAWayThatBecomesTooLongIsGivenUp(t *testing.T) {
	chain := func(n int) *Instance {
		var j *Instance
		for i := range n {
			j = jumpHost(string(rune('0'+i)), "x:22", j)
		}
		return j
	}
	f := newFleet(t, behind("a", jumpHost("bastion", "b:22", jumpHost("middle", "m:22", nil))))
	s := take(t, f.Group)
	require.NoError(t, f.Update([]Instance{behind("c", jumpHost("middle", "m:22", chain(7)))}))
	require.Nil(t, f.hosts["a"], "ten hosts would be on the way")
	require.Len(t, f.hosts["c"].path, 9)
	s.release()
	require.Equal(t, State("gone"), f.state("a"))
}

func TestJumpHostsThatAreInstancesAreShared(t *testing.T) {
	login := func(user string) mux.Config { return mux.Config{User: user} }
	at := func(id, addr, user string, jump *Instance) Instance {
		return Instance{ID: id, Addr: addr, SSH: login(user), Jump: jump}
	}
	to := func(id, addr, user string, jump *Instance) *Instance {
		return &Instance{ID: id, Addr: addr, SSH: login(user), Jump: jump}
	}
	all := []Instance{
		at("near", "10.0.0.5:22", "ci", nil),
		at("inside", "10.0.0.5:22", "ci", &Instance{ID: "near"}),
		at("same", "x:22", "ci", to("j", "10.0.0.5:22", "ci", nil)),
		at("user", "x:22", "ci", to("j", "10.0.0.5:22", "me", nil)),
		at("elsewhere", "x:22", "ci", to("j", "10.0.0.5:22", "ci", to("k", "b:22", "ci", nil))),
		at("farther", "x:22", "ci", to("j", "y:22", "ci", to("k", "10.0.0.5:22", "ci", nil))),
		at("through", "x:22", "ci", to("j", "10.0.0.5:22", "ci", to("k", "10.0.0.5:22", "ci", nil))),
	}
	shared := ShareJumpHosts(all)
	require.Nil(t, shared[0].Jump)
	require.Equal(t, &Instance{ID: "near"}, shared[1].Jump)
	require.Equal(t, &Instance{ID: "near"}, shared[2].Jump)
	require.Equal(t, all[3].Jump, shared[3].Jump)
	require.Equal(t, all[4].Jump, shared[4].Jump, "networks behind different bastions may have the same addresses")
	require.Equal(t, to("j", "y:22", "ci", &Instance{ID: "near"}), shared[5].Jump)
	require.Equal(t, &Instance{ID: "inside"}, shared[6].Jump, "it is that one by its whole way")
	require.Equal(t, "k", all[5].Jump.Jump.ID, "what was given is not changed")

	loop := to("j", "l:22", "ci", nil)
	loop.Jump = loop
	ShareJumpHosts([]Instance{at("a", "x:22", "ci", loop), at("b", "x:22", "ci", &Instance{ID: "b"})}) // ends
}
