package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/pause"
)

// member makes a pipeline that is carried out, and returns the ID of a member of it.
func member(t *testing.T, s *Store, name string) (id string, pipeline *Pipeline) {
	t.Helper()
	pipeline = &Pipeline{ID: PipelineID(name), Phase: PipelineRunning}
	require.NoError(t, s.PutPipeline(t.Context(), pipeline))
	return PipelineBuildID(pipeline.ID, "job", 0, 1), pipeline
}

// Random members come, go and ask where they stand: one runs and one waits, as a simple model says. All that a manager
// knows is in the store, so each step may be that of another manager.
func TestOneMemberOfAGroupRunsAndOneWaits(t *testing.T) {
	t.Parallel()
	s := open(t)
	random := rand.New(rand.NewPCG(1, 2)) // no secret
	var ids []string
	pipelines := map[string]*Pipeline{}
	want := map[string]Place{}
	runs, waits := "", ""
	free := func() bool { return runs == "" || pipelines[runs].AtRest() }
	advance := func(id string, cancels bool) {
		switch {
		case want[id] != Outside && want[id] != Waits:
		case free():
			if waits != "" && waits != id {
				want[waits] = Replaced
			}
			want[id], runs, waits = Runs, id, ""
		case want[id] == Outside:
			if waits != "" {
				want[waits] = Replaced
			}
			if want[id], waits = Waits, id; cancels {
				want[runs] = Stops
			}
		}
		at, holder, err := s.Advance(t.Context(), "g", id, cancels)
		require.NoError(t, err)
		require.Equal(t, want[id], at)
		if at == Waits {
			require.Equal(t, runs, holder)
		}
	}
	for i := range 300 {
		switch n := random.IntN(10); {
		case n < 3:
			id, p := member(t, s, fmt.Sprint(i))
			ids, pipelines[id] = append(ids, id), p
			advance(id, n == 0)
		case len(ids) == 0:
		case n < 7: // one of the last ones goes on
			if id := ids[max(len(ids)-1-random.IntN(4), 0)]; !pipelines[id].AtRest() {
				advance(id, false)
			}
		case n < 9 && runs != "" && !pipelines[runs].AtRest():
			as := Done
			if want[runs] == Stops {
				as = Replaced
			}
			require.NoError(t, s.Leave(t.Context(), "g", runs, as))
			want[runs], runs = as, ""
		case runs != "" && !pipelines[runs].AtRest(): // its manager could not carry it out
			pipelines[runs].Phase = PipelineEnded
			require.NoError(t, s.PutPipeline(t.Context(), pipelines[runs]))
		}
		for _, id := range ids[max(len(ids)-5, 0):] {
			at, err := s.Place(t.Context(), "g", id)
			require.NoError(t, err)
			if id == runs || want[id] != Runs && want[id] != Stops { // else its place was taken
				require.Equal(t, want[id], at, id)
			}
		}
	}
	require.NotEmpty(t, ids)
}

// A manager that ended between the two writes of a newcomer joins once.
func TestAMemberJoinsItsGroupOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	first, _ := member(t, s, "1")
	second, _ := member(t, s, "2")
	third, p := member(t, s, "3")
	for _, id := range []string{first, second} {
		_, _, err := s.Advance(t.Context(), "g", id, false)
		require.NoError(t, err)
		_, err = s.Purge(t.Context(), s.Pipelines, turnKey+id)
		require.NoError(t, err)
	}
	for id, want := range map[string]Place{first: Runs, second: Waits} {
		at, _, err := s.Advance(t.Context(), "g", id, false)
		require.NoError(t, err)
		require.Equal(t, want, at)
	}
	_, _, err := s.Advance(t.Context(), "g", third, true)
	require.NoError(t, err)
	at, _, err := s.Advance(t.Context(), "g", second, false)
	require.NoError(t, err)
	require.Equal(t, Replaced, at)
	require.NoError(t, s.Leave(t.Context(), "g", second, Replaced))
	at, _, err = s.Advance(t.Context(), "g", second, false)
	require.NoError(t, err)
	require.Equal(t, Replaced, at, "it does not come back")
	at, err = s.Place(t.Context(), "g", first)
	require.NoError(t, err)
	require.Equal(t, Stops, at)

	// The same job, run again by a retry, does not wait for itself.
	p.Rounds = map[string]int{"job": 1}
	require.NoError(t, s.Leave(t.Context(), "g", first, Done))
	at, _, err = s.Advance(t.Context(), "g", third, false)
	require.NoError(t, err)
	require.Equal(t, Runs, at)
	at, _, err = s.Advance(t.Context(), "g", PipelineBuildID(p.ID, "job", 1, 1), false)
	require.NoError(t, err)
	require.Equal(t, Runs, at)
}

// Members that come at the same time run one after another, or are replaced.
func TestMembersOfAGroupThatComeAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	var running sync.Mutex
	var mu sync.Mutex // guards the following
	ends := map[Place]int{}
	var all sync.WaitGroup
	for i := range 20 {
		id, _ := member(t, s, fmt.Sprint(i))
		all.Go(func() {
			var at Place
			err := s.WatchGroup(t.Context(), "g", func() (more bool, err error) {
				at, _, err = s.Advance(t.Context(), "g", id, false)
				return at == Waits, err
			})
			if at == Runs && err == nil {
				if !running.TryLock() {
					t.Error("two members run")
					return
				}
				err = pause.For(t.Context(), 5*time.Millisecond)
				running.Unlock()
				err = errors.Join(err, s.Leave(t.Context(), "g", id, Done))
			}
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ends[at]++
		})
	}
	all.Wait()
	require.Equal(t, 20, ends[Runs]+ends[Replaced])
	require.GreaterOrEqual(t, ends[Runs], 2, "the first and the last")
}
