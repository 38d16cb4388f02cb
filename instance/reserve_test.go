package instance

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Parties that all want more than there is get slots in proportion to their shares, and none waits for long: at any
// time each has had its part of the slots, but for one turn of each party.
func TestPartiesGetSlotsByTheirShares(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		shares := map[string]int{"queue": 1 + r.IntN(5), "gitea": 1 + r.IntN(5), "leases": 1 + r.IntN(20)}
		total := 0
		for _, n := range shares {
			total += n
		}
		g := group(t, 1+r.IntN(4), 1+r.IntN(4))
		g.SetShares(shares)
		var waits [3]chan *slot
		names := []string{"queue", "gitea", "leases"}
		enter := func(i int) {
			place := g.queue("b", names[i], demand{}, false)
			served := place.Value.(*waiter).served
			got := make(chan *slot, 1)
			waits[i] = got
			go func() { got <- (<-served).slot }()
		}
		synctest.Test(t, func(t *testing.T) {
			for i := range names {
				enter(i)
			}
			had, running := map[string]int{}, []*slot(nil)
			for granted := 0; granted < 2000; {
				synctest.Wait()
				for i := range names {
					select {
					case s := <-waits[i]:
						had[names[i]]++
						granted++
						running = append(running, s)
						enter(i)
					default:
					}
				}
				synctest.Wait()
				if len(running) > 0 { // builds take any time
					i := r.IntN(len(running))
					running[i].release()
					running = slices.Delete(running, i, i+1)
				}
				for _, name := range names {
					part := float64(granted) * float64(shares[name]) / float64(total)
					require.InDelta(t, part, had[name], float64(len(names)+g.entries[0].placement.Capacity+4),
						"seed %d: %s of %v after %d slots", seed, name, shares, granted)
				}
			}
			for len(running) > 0 { // ends the goroutines
				running[0].release()
				running = running[1:]
				synctest.Wait()
				for i := range names {
					select {
					case s := <-waits[i]:
						s.release()
					default:
					}
				}
			}
			synctest.Wait()
		})
	}
}

// A party that comes late has no claim for the time when it did not wait, and one that always waits does not keep it
// out.
func TestAPartyThatComesLateGetsItsTurn(t *testing.T) {
	g := group(t, 1)
	first := take(t, g)
	for range 10 {
		g.queue("early", "early", demand{}, false)
	}
	for range 5 { // they have run
		first.release()
		first = g.entries[0].slotsInOrder()[0]
	}
	for range 10 {
		g.queue("late", "late", demand{}, false)
	}
	var order string
	for range 8 {
		first.release()
		first = g.entries[0].slotsInOrder()[0]
		order += first.party[:1]
	}
	require.Contains(t, []string{"lelelele", "elelelel", "eleleele"}, order)
}

func TestAReservationBecomesTheSlotOfABuild(t *testing.T) {
	g := group(t, 1)
	p, err := NewProvider(Config{Group: g})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	r, err := g.Reserve(t.Context(), "door", nil)
	require.NoError(t, err)
	require.Equal(t, "a", r.Instance())
	require.Nil(t, g.TryReserve("queue", nil))
	require.Zero(t, g.stat().Instances[0].Used, "no build has it")
	require.Zero(t, g.stat().Instances[0].Uses)

	e := p.Executor(Build{ID: "build"})
	e.Queue(r)
	r.Release() // has no effect any more
	require.Nil(t, g.TryReserve("queue", nil))
	require.Equal(t, "build", g.stat().Instances[0].Builds[0].ID)
	require.Equal(t, 1, g.stat().Instances[0].Uses)
	require.NoError(t, e.Cleanup(t.Context()))
	require.Zero(t, g.stat().Instances[0].Uses, "the build did not reach the instance")

	r = g.TryReserve("queue", nil)
	require.NotNil(t, r)
	other := p.Executor(Build{ID: "other", Labels: map[string]string{"gpu": "true"}})
	other.Queue(r) // it does not suit
	require.NoError(t, other.Cleanup(t.Context()))
	r.Release()
	r.Release()
	require.Nil(t, g.TryReserve("queue", map[string]string{"gpu": "true"}))
	r = g.TryReserve("queue", nil)
	require.NotNil(t, r)
	r.Release()
	(*Reservation)(nil).Release()
}

// A reservation without a build yet is asked back if somebody else could use it, or if its instance takes no builds.
func TestAReservationIsAskedBack(t *testing.T) {
	g := group(t, 1, 1)
	ours, err := g.Reserve(t.Context(), "door", nil)
	require.NoError(t, err)
	firm, err := g.Reserve(t.Context(), "door", nil)
	require.NoError(t, err)
	recalled := ours.Soften()
	same := g.queue("same", "door", demand{}, false)
	require.False(t, isClosed(recalled), "it is of the same party")
	g.leave(same)
	elsewhere := g.queue("other", "queue", demand{on: firm.Instance()}, false)
	require.False(t, isClosed(recalled), "it would not help")
	g.leave(elsewhere)
	other := g.queue("other", "queue", demand{}, false)
	require.True(t, isClosed(recalled))
	ours.Release()
	s, err := g.await(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, ours.Instance(), s.placement.ID)
	s.release()

	recalled = firm.Soften()
	require.False(t, isClosed(recalled))
	require.NoError(t, g.Drain(firm.Instance()))
	require.True(t, isClosed(recalled))
	firm.Release()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = g.Reserve(ctx, "door", nil)
	require.ErrorIs(t, err, context.Canceled)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A reservation does not use up an instance that takes a limited number of builds, and nobody else gets its last use.
func TestAReservationIsNoUse(t *testing.T) {
	g, err := NewGroup(Instance{ID: "a", Addr: "x:22", SSH: loginAs("ci"), Capacity: 2, MaxUses: 1})
	require.NoError(t, err)
	r := g.TryReserve("door", nil)
	require.NotNil(t, r)
	require.Nil(t, g.TryReserve("queue", nil))
	waits := g.queue("b", "queue", demand{}, false)
	require.Len(t, g.Waiting(), 1, "it is not refused")
	r.Release()
	s, err := g.await(t.Context(), waits)
	require.NoError(t, err)
	s.release()
	_, err = g.Reserve(t.Context(), "door", nil)
	require.ErrorContains(t, err, "has had its 1 use")
}
