package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// carrier carries nodes out by sleeping.
type carrier struct {
	plan  *Plan
	takes map[string]time.Duration
	fails map[string]int // how many attempts fail

	mu      sync.Mutex // guards the following
	begin   time.Time
	starts  []string // name and second
	causes  map[string]error
	running int
	most    int
}

func (c *carrier) Carry(ctx context.Context, node, attempt int) Result {
	name := c.plan.Node(node).Name
	c.mu.Lock()
	c.starts = append(c.starts, name+" "+time.Since(c.begin).String())
	c.running++
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	timer := time.NewTimer(c.takes[name])
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
		if attempt <= c.fails[name] {
			err = errTest
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.causes[name] = err
	return Result{Err: err, ExitCode: 1}
}

// newCarrier returns a carrier for a graph that begins now.
func newCarrier(t *testing.T, g Graph) *carrier {
	t.Helper()
	p, err := New(g)
	require.NoError(t, err)
	return &carrier{plan: p, begin: time.Now(), causes: map[string]error{}, takes: map[string]time.Duration{}}
}

func need(names ...string) (list []Need) {
	for _, name := range names {
		list = append(list, Need{Name: name, Edge: stageNeeds})
	}
	return list
}

func TestDelaysAndRetriesTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(t, Graph{Nodes: []Node{
			{Name: "a", Delay: time.Minute},
			{Name: "b", Needs: need("a"), Retries: 2, RetryOn: Match{Any: true}, RetryWait: time.Hour},
			{Name: "c", Needs: need("b")},
			{Name: "d", Retries: 1, RetryOn: Match{ExitCodes: []int{2}}, MayFail: Match{Any: true}},
		}})
		c.takes["b"], c.fails = time.Second, map[string]int{"b": 2, "d": 9}
		states := map[int][]State{}
		r := c.plan.Run(t.Context(), c, Config{Observe: func(node int, s Status) {
			states[node] = append(states[node], s.State)
		}})
		require.Equal(t, []string{"d 0s", "a 1m0s", "b 1m0s", "b 1h1m1s", "b 2h1m2s", "c 2h1m3s"}, c.starts)
		require.Equal(t, "a success, b success, c success, d warning", told(r))
		require.Equal(t, 3, r.Status(1).Attempt)
		require.Equal(t, []State{
			Ready, Running, Delayed, Ready, Running, Delayed, Ready, Running, Succeeded,
		}, states[1])
		require.Equal(t, []State{Delayed, Ready, Running, Succeeded}, states[0])
		require.Equal(t, 2*time.Hour+3*time.Second, r.Status(1).Ended.Sub(r.Status(1).Began))
		require.Equal(t, []int{0, 1, 2}, r.CriticalPath())
	})
}

func TestSlotsAndGroupsBoundWhatRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Graph{Groups: []Group{{Name: "m", Max: 1}}}
		for i := range 20 {
			n := Node{Name: string(rune('a' + i))}
			if i < 4 {
				n.Groups = []string{"m"}
			}
			g.Nodes = append(g.Nodes, n)
		}
		c := newCarrier(t, g)
		for _, n := range g.Nodes {
			c.takes[n.Name] = time.Second
		}
		require.Equal(t, 20, c.plan.Run(t.Context(), c, Config{Slots: 5}).Count(Succeeded))
		require.Equal(t, 5, c.most)
		require.Equal(t, 4*time.Second, time.Since(c.begin))
		c.begin = time.Now()
		require.Equal(t, 20, c.plan.Run(t.Context(), c, Config{}).Count(Succeeded))
		require.Equal(t, 4*time.Second, time.Since(c.begin), "the group's nodes run one after another")
	})
}

func TestACancelledRunStopsWhatRunsAndStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(t, Graph{Nodes: []Node{
			{Name: "done"},
			{Name: "long", Retries: 2, RetryOn: Match{Any: true}},
			{Name: "later", Needs: need("long"), When: Always},
			{Name: "delayed", Delay: time.Hour},
			{Name: "slot", Needs: need("done")},
			{Name: "manual", Manual: true},
		}})
		c.takes["long"], c.takes["slot"] = time.Hour, time.Hour
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := time.AfterFunc(time.Minute, func() { cancel(cause) })
		defer stop.Stop()
		r := c.plan.Run(ctx, c, Config{Slots: 2, Play: make(chan int)})
		require.Equal(t, time.Minute, time.Since(c.begin))
		require.Equal(t, "done success, long cancelled (cancelled), later cancelled (cancelled), "+
			"delayed cancelled (cancelled), slot cancelled (cancelled), manual cancelled (cancelled)", told(r))
		require.ErrorIs(t, c.causes["long"], cause)
		_, failed := r.Failed()
		require.False(t, failed)

		c.starts = nil
		r = c.plan.Run(ctx, c, Config{})
		require.Equal(t, 6, r.Count(Cancelled))
		require.Empty(t, c.starts)
	})
}

// A node that ends together with the context of the run was cancelled, whichever of the two the run sees first.
func TestANodeThatEndsWithTheContextIsCancelled(t *testing.T) {
	p, err := New(Graph{Nodes: []Node{{Name: "a"}}})
	require.NoError(t, err)
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			r := p.Run(ctx, carryFunc(func(ctx context.Context, _, _ int) Result {
				<-ctx.Done()
				return Result{Err: errTest}
			}), Config{Observe: func(_ int, s Status) {
				if s.State == Running {
					cancel()
					synctest.Wait() // the node has ended, too
				}
			}})
			require.Equal(t, Cancelled, r.Status(0).State)
		})
	}
}

// A node that is Asked starts in a cancelled run, too, and the caller decides how it ends. One that runs when the run
// is cancelled goes on as long as the caller wants.
func TestAskedNodesStartInACancelledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		need := func(name string) []Need { return []Need{{Name: name, Edge: Control}} }
		plan, err := New(Graph{Nodes: []Node{
			{Name: "stops", When: Asked},
			{Name: "goes on", When: Asked, Retries: 3, RetryOn: Match{Any: true}},
			{Name: "always", When: Asked, Needs: need("stops")},
			{Name: "skipped", When: Asked, Needs: need("goes on")},
			{Name: "ordinary", Needs: need("skipped")},
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		run := plan.Run(ctx, carryFunc(func(ctx context.Context, node, _ int) Result {
			switch plan.Node(node).Name {
			case "stops":
				<-time.NewTimer(time.Second).C
				cancel()
				return Result{Err: context.Cause(ctx), As: Cancelled}
			case "goes on":
				<-time.NewTimer(time.Minute).C
				return Result{Err: errTest, ExitCode: 4}
			case "skipped":
				return Result{As: Skipped, Why: "if"}
			default:
				require.Error(t, ctx.Err())
				return Result{}
			}
		}), Config{})
		var got []string
		for i := range plan.Len() {
			got = append(got, run.Status(i).State.String()+" "+run.Why(i))
		}
		require.Equal(t, []string{"cancelled cancelled", "failed ", "success ", "skipped if", "cancelled cancelled"}, got)
		require.Equal(t, 1, run.Status(1).Attempt)
	})
}

func TestFailFastStopsTheOthersOfTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []string{"matrix"}
		c := newCarrier(t, Graph{Groups: []Group{{Name: "matrix", FailFast: true}}, Nodes: []Node{
			{Name: "a", Groups: all},
			{Name: "b", Groups: all},
			{Name: "c", Groups: all, Delay: time.Hour},
			{Name: "other"},
			{Name: "after", Needs: need("b"), When: OnFailure},
			{Name: "end", Needs: need("a", "b", "c", "other"), When: OnFailure},
		}})
		c.takes["a"], c.takes["b"], c.takes["other"] = time.Second, time.Hour, time.Minute
		c.fails = map[string]int{"a": 1}
		r := c.plan.Run(t.Context(), c, Config{})
		require.Equal(t, `a failed, b cancelled ("a" failed), c cancelled ("a" failed), other success, `+
			`after skipped (nothing before it failed), end success`, told(r))
		require.ErrorIs(t, c.causes["b"], ErrFailFast)
		require.Equal(t, time.Minute, time.Since(c.begin))
	})
}

func TestManualNodesRunWhenTheyArePlayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(t, Graph{Nodes: []Node{
			{Name: "a"},
			{Name: "hold", Manual: true, Needs: need("a")},
			{Name: "b", Needs: need("hold")},
			{Name: "extra", Manual: true, Optional: true},
			{Name: "never", Manual: true},
			{Name: "c", Needs: need("never")},
		}})
		play := make(chan int)
		go func() {
			defer close(play)
			for _, node := range []int{1, 1, 0, 99, -1, 3} {
				time.Sleep(time.Minute) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
				play <- node
			}
		}()
		r := c.plan.Run(t.Context(), c, Config{Play: play})
		require.Equal(t, []string{"a 0s", "hold 1m0s", "b 1m0s", "extra 6m0s"}, c.starts)
		require.Equal(t, `a success, hold success, b success, extra success, never blocked (manual), `+
			`c blocked (blocked by "never")`, told(r))
	})
}

// Random graphs with goroutines that really run end as the oracle says.
func TestRandomGraphsRun(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			g, outcomes := randomGraph(newRand(seed), false)
			p, err := New(g)
			require.NoError(t, err)
			rng, mu := newRand(seed+1), sync.Mutex{}
			r := p.Run(t.Context(), carryFunc(func(_ context.Context, node, attempt int) Result {
				mu.Lock()
				takes := time.Duration(rng.IntN(5)) * time.Second
				mu.Unlock()
				time.Sleep(takes) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
				return outcomes[node].result(attempt)
			}), Config{Slots: 3})
			var got []State
			for i := range g.Nodes {
				got = append(got, r.Status(i).State)
			}
			require.True(t, slices.Equal(oracle(g, outcomes), got), "seed %d", seed)
		})
	}
}

type carryFunc func(ctx context.Context, node, attempt int) Result

func (f carryFunc) Carry(ctx context.Context, node, attempt int) Result { return f(ctx, node, attempt) }

// A run that rests ends while manual jobs wait, after all that was played before.
func TestARunThatRestsDoesNotWaitForPlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan, err := New(Graph{Nodes: []Node{
			{Name: "a"},
			{Name: "m", Manual: true, Needs: []Need{{Name: "a", Edge: Control}}},
			{Name: "n", Manual: true},
			{Name: "b", Needs: []Need{{Name: "m", Edge: Control}}},
		}})
		require.NoError(t, err)
		play := make(chan int, 4)
		ran := carryFunc(func(context.Context, int, int) Result { return Result{} })
		end := plan.Run(t.Context(), ran, Config{Play: play, Rests: true, Observe: func(node int, s Status) {
			if node == 1 && s.State == Manual {
				play <- node
			}
		}})
		states := ""
		for node := range plan.Len() {
			states += end.Status(node).State.String() + " "
		}
		require.Equal(t, "success success blocked success ", states)
	})
}
