package pipeline

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errTest = errors.New("exit status 1")

// attempts are the exit codes of a node's attempts; the last one repeats.
type attempts []int

func (a attempts) result(attempt int) Result {
	code := a[min(attempt, len(a))-1]
	switch code {
	case 0:
		return Result{}
	case 5:
		return Result{As: Skipped}
	case 6:
		return Result{Err: errTest, As: Cancelled, Why: "replaced"}
	}
	return Result{Err: errTest, ExitCode: code, Reason: fmt.Sprintf("reason %d", code%2)}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// randomGraph returns a graph without loops, and the outcomes of its nodes.
func randomGraph(rng *rand.Rand, failFast bool) (Graph, []attempts) {
	g := Graph{Groups: []Group{{Name: "mutex", Max: 1}, {Name: "two", Max: 2}, {Name: "fast", FailFast: failFast}}}
	for s := range rng.IntN(5) {
		g.Stages = append(g.Stages, fmt.Sprintf("stage %d", s))
	}
	var outcomes []attempts
	chance := func(percent int) bool { return rng.IntN(100) < percent }
	for i := range 1 + rng.IntN(25) {
		n := Node{
			Name: fmt.Sprintf("n%d", i), When: Condition(rng.IntN(4)), Strict: chance(50),
			Manual: chance(10), Optional: chance(50), Retries: rng.IntN(3), Free: chance(20),
			RetryOn: Match{Any: chance(30), ExitCodes: []int{2}, Reasons: []string{"reason 1"}},
			MayFail: Match{ExitCodes: []int{3}},
		}
		if chance(60) {
			n.When = OnSuccess
		}
		if len(g.Stages) > 0 {
			n.Stage = i * len(g.Stages) / 25
			if chance(60) {
				n.After = Edge(rng.IntN(8))
			}
		}
		for range rng.IntN(4) {
			if i > 0 {
				n.Needs = append(n.Needs, Need{Name: fmt.Sprintf("n%d", rng.IntN(i)), Edge: Edge(rng.IntN(8))})
			}
		}
		if chance(20) {
			n.Delay = time.Duration(rng.IntN(3)) * time.Minute
			n.RetryWait = time.Duration(rng.IntN(3)) * time.Second
		}
		for _, of := range g.Groups {
			if chance(15) {
				n.Groups = append(n.Groups, of.Name)
			}
		}
		a := attempts{0}
		if chance(50) {
			a = attempts{rng.IntN(7), rng.IntN(7), rng.IntN(2) * 4}
		}
		g.Nodes, outcomes = append(g.Nodes, n), append(outcomes, a)
	}
	return g, outcomes
}

// before returns the nodes that a node waits for, and those whose outcome counts for its condition. It goes through all
// pairs of nodes.
func before(g Graph, i int) (all, counted []int) {
	n := g.Nodes[i]
	for j, other := range g.Nodes {
		kind, waits := Edge(0), false
		if n.After != 0 && len(g.Stages) > 0 && other.Stage < n.Stage {
			kind, waits = n.After, true
		}
		for _, need := range n.Needs {
			if need.Name == other.Name {
				kind, waits = kind|need.Edge, true
			}
		}
		if waits {
			all = append(all, j)
		}
		if kind&Control != 0 {
			counted = append(counted, j)
		}
	}
	return all, counted
}

// oracle returns the final states of all nodes of a run in which nothing is cancelled, in the slowest way.
func oracle(g Graph, outcomes []attempts) []State {
	states := make([]State, len(g.Nodes))
	for i, n := range g.Nodes { // a node needs only earlier ones
		all, counted := before(g, i)
		state := func(j int) State {
			if states[j] == Blocked && g.Nodes[j].Manual && g.Nodes[j].Optional && !waits(g, states, j) {
				return Skipped
			}
			return states[j]
		}
		has := func(list []int, want ...State) bool {
			return slices.ContainsFunc(list, func(j int) bool { return slices.Contains(want, state(j)) })
		}
		skips := n.Strict && has(counted, Skipped)
		holds := map[Condition]bool{
			OnSuccess: !has(counted, Failed, Cancelled) && !skips,
			OnFailure: has(counted, Failed) && !skips,
			Always:    skips || has(counted, Failed) || !has(counted, Cancelled),
			Asked:     true,
		}[n.When]
		switch {
		case has(all, Blocked):
			states[i] = Blocked
		case !holds:
			states[i] = Skipped
		case n.Manual:
			states[i] = Blocked
		default:
			states[i] = finalState(n, outcomes[i])
		}
	}
	return states
}

// waits reports whether a Blocked node waits for another one.
func waits(g Graph, states []State, i int) bool {
	all, _ := before(g, i)
	return slices.ContainsFunc(all, func(j int) bool {
		return states[j] == Blocked && (!g.Nodes[j].Manual || !g.Nodes[j].Optional || waits(g, states, j))
	})
}

// finalState returns the state of a node that runs.
func finalState(n Node, a attempts) State {
	for attempt := 1; ; attempt++ {
		r := a.result(attempt)
		switch {
		case r.As != 0:
			return r.As
		case r.Err == nil:
			return Succeeded
		case attempt <= n.Retries && (n.RetryOn.Any || r.ExitCode == 2 || r.Reason == "reason 1"):
			continue
		case r.ExitCode == 3:
			return Warned
		default:
			return Failed
		}
	}
}

// driver carries a plan out in a random order, and checks each step.
type driver struct {
	t        *testing.T
	g        Graph
	rng      *rand.Rand
	outcomes []attempts
	run      *Progress
	now      time.Time
	running  []int
	ends     []int // how often each node has got a final state
	slots    int
	stopped  map[int]bool
	passed   map[int]bool // optional nodes that waited for Play: others count them as skipped, also if they end later
}

func (d *driver) start() {
	for {
		taken := 0
		for _, i := range d.running {
			if !d.g.Nodes[i].Free {
				taken++
			}
		}
		node, ok := d.run.Take(taken < d.slots, d.now)
		if !ok {
			break
		}
		d.checkStart(node, taken)
		d.running = append(d.running, node)
	}
	d.note()
}

// checkStart checks that a node may start.
func (d *driver) checkStart(node, taken int) {
	n := d.g.Nodes[node]
	require.Zero(d.t, d.ends[node], "%s starts after its end", n.Name)
	require.NotContains(d.t, d.running, node)
	require.True(d.t, n.Free || taken < d.slots, "no slot for %s", n.Name)
	all, counted := before(d.g, node)
	seen := outcomes(0)
	for _, j := range all {
		s := d.run.Status(j).State
		optional := s == Manual && d.g.Nodes[j].Optional
		require.True(d.t, s.Final() || optional, "%s starts before %s, which is %v", n.Name, d.g.Nodes[j].Name, s)
		if d.passed[j] {
			s = Skipped
		}
		if slices.Contains(counted, j) {
			seen |= s.outcome()
		}
	}
	require.True(d.t, n.When.holds(seen, n.Strict), "%s starts without its condition", n.Name)
	for _, limit := range []Group{{Name: "mutex", Max: 1}, {Name: "two", Max: 2}} {
		count := 0
		for _, j := range append(d.running, node) {
			if slices.Contains(d.g.Nodes[j].Groups, limit.Name) {
				count++
			}
		}
		if slices.Contains(n.Groups, limit.Name) {
			require.LessOrEqual(d.t, count, limit.Max, limit.Name)
		}
	}
	s := d.run.Status(node)
	require.LessOrEqual(d.t, s.Attempt, n.Retries+1)
	if s.Attempt == 1 {
		require.Zero(d.t, s.Result)
	}
}

// note counts the ends of nodes.
func (d *driver) note() {
	for _, i := range d.run.Changes() {
		if d.run.Status(i).State == Manual {
			d.passed[i] = d.g.Nodes[i].Optional
		}
		if d.run.Status(i).State.Final() {
			d.ends[i]++
		}
	}
}

// drive carries the plan out. cancelAt is the step at which it is cancelled; negative for never.
func (d *driver) drive(cancelAt int) {
	plan, err := New(d.g)
	require.NoError(d.t, err)
	d.now, d.slots, d.ends = time.Unix(1e9, 0), 1+d.rng.IntN(4), make([]int, len(d.g.Nodes))
	d.run, d.passed, d.stopped = plan.Begin(d.now), map[int]bool{}, map[int]bool{}
	d.note()
	for step := 0; ; step++ {
		require.Less(d.t, step, 10_000, "the run does not end")
		if step == cancelAt {
			d.run.Cancel(d.now)
		}
		d.run.Advance(d.now)
		d.start()
		if d.run.Idle() {
			break
		}
		if len(d.running) == 0 {
			at, ok := d.run.Wake()
			require.True(d.t, ok, "nothing runs, nothing wakes, and the run is not idle")
			require.True(d.t, at.After(d.now))
			d.now = at
			continue
		}
		at := d.rng.IntN(len(d.running))
		node := d.running[at]
		d.running = slices.Delete(d.running, at, at+1)
		d.now = d.now.Add(time.Duration(d.rng.IntN(3)) * time.Second)
		result := d.outcomes[node].result(d.run.Status(node).Attempt)
		for _, stopped := range d.run.Stops() {
			require.Equal(d.t, Running, d.run.Status(stopped).State)
			require.False(d.t, d.stopped[stopped], "a node is stopped twice")
			d.stopped[stopped] = true
		}
		d.run.End(node, result, d.now)
		d.note()
	}
	d.run.Finish(d.now)
	d.note()
	_, again := d.run.Take(true, d.now)
	require.False(d.t, again, "a node starts after the end of the run")
	for i, count := range d.ends {
		require.Equal(d.t, 1, count, "ends of %s", d.g.Nodes[i].Name)
	}
}

// Whatever the order in which nodes end, the states are those of the oracle, and no node starts too early.
func TestRandomGraphsEndAsTheOracleSays(t *testing.T) {
	for seed := range uint64(1000) {
		rng := newRand(seed)
		g, outcomes := randomGraph(rng, false)
		want := oracle(g, outcomes)
		for range 2 {
			d := &driver{t: t, g: g, rng: rng, outcomes: outcomes}
			d.drive(-1)
			for i, n := range g.Nodes {
				require.Equal(t, want[i], d.run.Status(i).State, "seed %d: %s", seed, n.Name)
				require.Equal(t, want[i].Ran(), d.run.Why(i) == "", "seed %d: %s", seed, n.Name)
			}
			checkPath(t, g, d.run)
		}
	}
}

// checkPath checks that each node of the critical path waits for the one before it.
func checkPath(t *testing.T, g Graph, run *Progress) {
	t.Helper()
	path := run.CriticalPath()
	for i, node := range path {
		require.True(t, run.Status(node).State.Ran())
		all, _ := before(g, node)
		if i == 0 {
			require.False(t, slices.ContainsFunc(all, func(j int) bool { return run.Status(j).State.Ran() }))
			continue
		}
		require.Contains(t, all, path[i-1])
		require.False(t, run.Status(node).Began.Before(run.Status(path[i-1]).Ended))
	}
}

// With fail-fast and cancellation the states depend on the order, but each node still ends once and never too early,
// and those that are Asked start in any case.
func TestRandomGraphsThatAreCancelledEndOnce(t *testing.T) {
	for seed := range uint64(1000) {
		rng := newRand(seed)
		g, outcomes := randomGraph(rng, true)
		d := &driver{t: t, g: g, rng: rng, outcomes: outcomes}
		d.drive(rng.IntN(40) - 10)
		for i, n := range g.Nodes {
			s := d.run.Status(i)
			if n.When == Asked && s.State != Blocked {
				require.Positive(t, s.Attempt, "seed %d: %s was not asked", seed, n.Name)
				require.True(t, s.State != Cancelled || s.Result.As == Cancelled, "seed %d: %s", seed, n.Name)
			}
		}
	}
}
