package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPlanFollowsFromSeedAndRound(t *testing.T) {
	for round := range 50 {
		require.Equal(t, Filter{}.Draw(7, round), Filter{}.Draw(7, round))
	}
	require.NotEqual(t, Filter{}.Draw(7, 0), Filter{}.Draw(8, 0))
	require.NotEqual(t, Filter{}.Draw(7, 0).Builds, Filter{}.Draw(7, 1).Builds)
}

func TestEachKindIsDrawnOnEachOfItsRoutes(t *testing.T) {
	drawn := map[choice]int{}
	for round := range 10_000 {
		p := Filter{}.Draw(1, round)
		require.NotEmpty(t, p.Builds)
		require.NotEmpty(t, p.Faults)
		for _, f := range p.Faults {
			require.Less(t, f.Build, len(p.Builds))
			require.GreaterOrEqual(t, f.After, int64(0))
			require.Less(t, f.Size, 1.0)
		}
		drawn[choice{p.Kind, p.Route}]++
	}
	for _, c := range usualChoices {
		require.Positive(t, drawn[c], "%v", c)
	}
}

func TestWhatHappensToTheWholeMachineIsDrawnOnlyAlone(t *testing.T) {
	f := Filter{Kinds: []Kind{"clock"}}
	require.NoError(t, f.Check())
	require.Equal(t, Kind("clock"), f.Draw(1, 0).Kind)
	require.NotEqual(t, Filter{}.Journal(1), f.Journal(1), "its rounds have the same numbers")
	require.Len(t, DrawShort(1, f, 6), 1)
	require.ErrorContains(t, Filter{Kinds: []Kind{"cut", "clock"}}.Check(), `"clock" happens to the whole machine`)
	require.NotContains(t, soakKinds(true), Kind("clock"))
}

func TestBuildsOfARoundHaveNamesOfTheirOwn(t *testing.T) {
	names := map[string]bool{}
	for i := range 200 {
		names[drawOf(newSource(1, i), 1, i, choice{"cancel-many", "auto"}).Builds[i].ID] = true
	}
	require.Len(t, names, 200)
}

func TestFilterLeavesOutWhatIsNotWanted(t *testing.T) {
	f := Filter{Kinds: []Kind{"cut", "half-open"}, Routes: []string{"session"}, Shared: true}
	require.NoError(t, f.Check())
	require.True(t, f.Wants(Plan{Kind: "cut", Route: "session"}))
	require.False(t, f.Wants(Plan{Kind: "cut", Route: "relay"}))
	require.False(t, f.Wants(Plan{Kind: "half-open", Route: "session"}), "it needs a network of its own")
	require.False(t, f.Wants(Plan{Kind: "reset", Route: "session"}))

	require.ErrorContains(t, Filter{Kinds: []Kind{"flod"}}.Check(), `unknown kind of fault "flod"`)
	require.ErrorContains(t, Filter{Routes: []string{"tcp"}}.Check(), `unknown route "tcp"`)
	require.ErrorContains(t, Filter{Kinds: []Kind{"kill-relay"}, Routes: []string{"session"}}.Check(), "no kind of fault")
}

func TestShortRoundsAreOfEachKindAndOnAllRoutes(t *testing.T) {
	found, routes := map[Kind]bool{}, map[string]bool{}
	for _, p := range DrawShort(1, Filter{}, 4) {
		require.Equal(t, Filter{}.Draw(1, p.Round), p, "it can be repeated by its number")
		require.LessOrEqual(t, len(p.Builds), 4)
		found[p.Kind], routes[p.Route] = true, true
	}
	for _, k := range everyKind {
		require.Equal(t, !kinds[k].slow && !kinds[k].global && !kinds[k].campaign && k != "cancel-many", found[k], k)
	}
	require.Len(t, routes, len(Routes))
}

func TestAStormCutsEachVMOnce(t *testing.T) {
	faults := drawStorm(newSource(1, 2), soakVMs, soakBuilds)
	require.Equal(t, faults, drawStorm(newSource(1, 2), soakVMs, soakBuilds), "it can be repeated")
	cut := map[int]int{}
	for _, f := range faults {
		require.Less(t, f.Build, soakBuilds)
		if f.Kind == "" {
			cut[f.VM]++
		}
	}
	require.Len(t, cut, soakVMs)
	require.NotContains(t, cut, 0)
	require.ErrorContains(t, Filter{Kinds: []Kind{storm}}.Check(), "no kind of fault", "only a soak draws it")
}
