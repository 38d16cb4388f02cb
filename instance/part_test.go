package instance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// named returns instances with these IDs.
func named(ids ...string) (all []Instance) {
	for _, id := range ids {
		all = append(all, Instance{ID: id, Addr: "127.0.0.1:22", SSH: loginAs("ci")})
	}
	return all
}

func idsOf(g *Group) (ids []string) {
	for _, in := range g.Instances() {
		ids = append(ids, in.ID)
	}
	return ids
}

func TestThePartsOfASetChangeByThemselves(t *testing.T) {
	g := &Group{}
	require.NoError(t, g.UpdatePart("small", named("s-1", "s-2")))
	require.NoError(t, g.Update(named("a", "b")))
	require.NoError(t, g.UpdatePart("large", named("l-1")))
	require.Equal(t, []string{"a", "b", "l-1", "s-1", "s-2"}, idsOf(g))
	require.NoError(t, g.UpdatePart("small", named("s-2", "s-3")))
	require.NoError(t, g.Update(named("b")))
	require.Equal(t, []string{"b", "l-1", "s-2", "s-3"}, idsOf(g))

	err := g.UpdatePart("large", named("l-1", "s-3"))
	require.ErrorContains(t, err, "instance s-3: there are two of this ID")
	require.ErrorContains(t, g.Update(named("b", "l-1")), "instance l-1: there are two of this ID")
	require.Equal(t, []string{"b", "l-1", "s-2", "s-3"}, idsOf(g), "nothing has changed")

	require.NoError(t, g.add(named("c")[0]))
	_, _, err = g.remove("s-2")
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c", "l-1", "s-3"}, idsOf(g))
	require.NoError(t, g.UpdatePart("small", nil))
	require.NoError(t, g.UpdatePart("large", named("s-3")), "it has left the other part")
	require.Equal(t, []string{"b", "c", "s-3"}, idsOf(g))
}

// A VM that leaves its part takes no builds, and stays until its last build has ended.
func TestAnInstanceThatLeavesItsPartKeepsItsBuilds(t *testing.T) {
	g := &Group{}
	require.NoError(t, g.UpdatePart("small", named("s-1")))
	s := take(t, g)
	require.NoError(t, g.UpdatePart("small", nil))
	require.Equal(t, Removed, g.stat().Instances[0].State)
	require.NoError(t, g.UpdatePart("large", named("s-1")), "it comes back in another part")
	require.NoError(t, g.UpdatePart("small", nil))
	require.Equal(t, []string{"s-1"}, idsOf(g))
	s.release()
	require.Equal(t, []string{"s-1"}, idsOf(g))
}

func TestBuildsWaitWhileInstancesAreExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Group{}
		_, err := g.acquire(t.Context(), "early")
		require.ErrorContains(t, err, "the group has no instances")
		stop := g.Expect()
		got := make(chan error, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			_, err := g.await(ctx, g.queue("b", "", demand{labels: map[string]string{"size": "l"}}, false))
			got <- err
		}()
		synctest.Wait()
		require.Equal(t, map[string]map[string]string{"b": {"size": "l"}}, g.WaitingFor())
		stop()
		stop()
		require.ErrorContains(t, <-got, "the group has no instances")
		require.Empty(t, g.WaitingFor())
		cancel(errors.New("the end"))
	})
}
