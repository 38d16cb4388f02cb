package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stageNeeds are the edges of a job without explicit needs.
const stageNeeds = Control | Files | Values

func TestMistakesOfAGraphNameTheJobAndItsPlace(t *testing.T) {
	needs := func(names ...string) (list []Need) {
		for _, name := range names {
			list = append(list, Need{Name: name, Edge: Control})
		}
		return list
	}
	many := make([]Node, MaxNodes+1)
	wide := []Node{{Name: "a"}, {Name: "b"}}
	for range MaxNeeds + 1 {
		wide[1].Needs = append(wide[1].Needs, Need{Name: "a"})
	}
	for want, g := range map[string]Graph{
		"ci.yml:3:1: two jobs have the name \"a\"; rename one": {
			Nodes: []Node{{Name: "a"}, {Name: "a", Place: "ci.yml:3:1"}},
		},
		"ci.yml:1:1: the job \"a\" needs \"b\", and there is no such job": {
			Nodes: []Node{{Name: "a", Place: "ci.yml:1:1", Needs: needs("b")}},
		},
		"ci.yml:2:1: the job needs itself, directly or by others: \"b\" needs \"c\" needs \"b\"; remove one of these needs": {
			Nodes: []Node{
				{Name: "a", Needs: needs("b")},
				{Name: "b", Place: "ci.yml:2:1", Needs: needs("d", "c")},
				{Name: "c", Needs: needs("b")},
				{Name: "d"},
			},
		},
		"the job needs itself, directly or by others: \"a\" needs \"a\"; remove one of these needs": {
			Nodes: []Node{{Name: "a", Needs: needs("a")}},
		},
		"the job needs itself, directly or by others: \"a\" needs \"b\" waits for the stage \"y\" after \"x\" with \"a\"; " +
			"remove one of these needs": {
			Stages: []string{"x", "y", "z"},
			Nodes:  []Node{{Name: "a", Needs: needs("b")}, {Name: "b", Stage: 2, After: Control}},
		},
		"the job \"a\" has the stage number 1, and there are 1": {
			Stages: []string{"x"}, Nodes: []Node{{Name: "a", Stage: 1}},
		},
		"the pipeline has 10001 jobs, and at most 10000 can run; split it":                        {Nodes: many},
		"the jobs up to \"b\" have more than 500000 needs; use stages in their place":             {Nodes: wide},
		"the job needs itself, directly or by others: \"0\" needs \"1\" needs \"2\" needs \"3\" ": {Nodes: ring(2000)},
	} {
		_, err := New(g)
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 300)
	}
	p, err := New(Graph{})
	require.NoError(t, err)
	require.True(t, p.Begin(time.Now()).Idle())
}

// ring returns n nodes, each of which needs the next.
func ring(n int) []Node {
	list := make([]Node, n)
	for i := range list {
		list[i] = Node{Name: fmt.Sprint(i), Needs: []Need{{Name: fmt.Sprint((i + 1) % n)}}}
	}
	return list
}

// script carries a plan out, one node after another. results has the exit codes of the nodes that fail.
func script(t *testing.T, g Graph, results map[string]int) *Progress {
	t.Helper()
	p, err := New(g)
	require.NoError(t, err)
	now := time.Unix(1e9, 0)
	r := p.Begin(now)
	for !r.Idle() {
		now = now.Add(time.Second)
		r.Advance(now)
		if node, ok := r.Take(true, now); ok {
			code := results[p.Node(node).Name]
			result := Result{ExitCode: code}
			if code != 0 {
				result.Err = errTest
			}
			r.End(node, result, now)
		}
	}
	r.Finish(now)
	return r
}

// told returns the states of all nodes, with the reasons of those that did not run.
func told(r *Progress) string {
	var list []string
	for i := range r.Plan().Len() {
		text := fmt.Sprintf("%s %v", r.Plan().Node(i).Name, r.Status(i).State)
		if why := r.Why(i); why != "" {
			text += " (" + why + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func TestWhyANodeDidNotRun(t *testing.T) {
	stages := []string{"build", "test", "deploy"}
	build := Node{Name: "build"}
	test := Node{Name: "test", Stage: 1, After: stageNeeds}
	deploy := Node{Name: "deploy", Stage: 2, After: stageNeeds}
	with := func(n Node, change func(*Node)) Node { change(&n); return n }
	for _, c := range []struct {
		nodes []Node
		fail  string
		want  string
	}{
		{[]Node{build, test, deploy}, "", "build success, test success, deploy success"},
		{
			[]Node{build, test, deploy},
			"build",
			`build failed, test skipped ("build": failed), deploy skipped ("build": failed)`,
		},
		{
			[]Node{
				with(build, func(n *Node) { n.MayFail.Any = true }), test, with(deploy, func(n *Node) { n.When = OnFailure }),
			},
			"build", `build warning, test success, deploy skipped (nothing before it failed)`,
		},
		{
			[]Node{build, with(test, func(n *Node) { n.When = OnFailure }), with(deploy, func(n *Node) { n.When = Always })},
			"build", `build failed, test success, deploy success`,
		},
		{
			[]Node{build, with(test, func(n *Node) { n.Manual = true }), deploy},
			"",
			`build success, test blocked (manual), deploy blocked (blocked by "test")`,
		},
		{
			[]Node{build, with(test, func(n *Node) { n.Manual, n.Optional = true, true }), deploy},
			"",
			`build success, test blocked (manual), deploy success`,
		},
		{
			[]Node{
				with(build, func(n *Node) { n.Manual, n.Optional = true, true }), test,
				{Name: "needs", Stage: 1, Needs: []Need{{Name: "build", Edge: Control}}, Strict: true},
			},
			"", `build blocked (manual), test success, needs skipped ("build": manual)`,
		},
		{
			[]Node{
				{Name: "a", Groups: []string{"all"}}, {Name: "b", Groups: []string{"all"}}, {Name: "c", After: Control, Stage: 1},
			},
			"a", `a failed, b cancelled ("a" failed), c skipped ("a": failed)`,
		},
	} {
		g := Graph{Nodes: c.nodes, Stages: stages, Groups: []Group{{Name: "all", FailFast: true}}}
		r := script(t, g, map[string]int{c.fail: 1})
		require.Equal(t, c.want, strings.ReplaceAll(told(r), `"build": blocked`, `"build": manual`))
	}
}

func TestConditionsAfterOutcomes(t *testing.T) {
	for _, c := range []struct {
		seen   outcomes
		strict bool
		want   [3]bool // OnSuccess, OnFailure, Always
	}{
		{0, true, [3]bool{true, false, true}},
		{succeeded, true, [3]bool{true, false, true}},
		{succeeded | skipped, false, [3]bool{true, false, true}},
		{succeeded | skipped, true, [3]bool{false, false, true}},
		{failed | skipped, false, [3]bool{false, true, true}},
		{failed | skipped, true, [3]bool{false, false, true}},
		{cancelled | succeeded, false, [3]bool{false, false, false}},
		{cancelled | failed, true, [3]bool{false, true, true}},
		{cancelled | skipped, true, [3]bool{false, false, true}},
	} {
		for when := range OnSuccess + 3 {
			require.Equal(t, c.want[when], when.holds(c.seen, c.strict), "%v of %+v", when, c)
		}
	}
}

// A cancelled node that waited for a group makes room for the next one.
func TestACancelledNodeLeavesItsGroup(t *testing.T) {
	p, err := New(Graph{Groups: []Group{{Name: "m", Max: 1}, {Name: "fast", FailFast: true}}, Nodes: []Node{
		{Name: "x", Groups: []string{"m"}},
		{Name: "a", Groups: []string{"m", "fast"}},
		{Name: "b", Groups: []string{"m"}},
		{Name: "fails", Groups: []string{"fast"}},
	}})
	require.NoError(t, err)
	now := time.Now()
	r := p.Begin(now)
	for _, want := range []int{0, 3} {
		node, ok := r.Take(true, now)
		require.True(t, ok)
		require.Equal(t, want, node)
	}
	r.End(3, Result{Err: errTest}, now)
	r.End(0, Result{}, now)
	node, ok := r.Take(true, now)
	require.True(t, ok, "b waits for a, which was cancelled")
	require.Equal(t, 2, node)
}

func TestTheFirstFailureDecides(t *testing.T) {
	r := script(t, Graph{Nodes: []Node{
		{Name: "may", MayFail: Match{ExitCodes: []int{7}}}, {Name: "a"}, {Name: "b", Needs: []Need{{Name: "a", Edge: Files}}},
	}}, map[string]int{"may": 7, "a": 5, "b": 6})
	node, ok := r.Failed()
	require.True(t, ok)
	require.Equal(t, []any{1, 5}, []any{node, r.Status(node).Result.ExitCode})
	require.Equal(t, "may warning, a failed, b failed", told(r), "the edge of b is no control")
	require.Equal(t, []int{1, 2}, r.CriticalPath())
	_, ok = script(t, Graph{Nodes: []Node{{Name: "may", MayFail: Match{Any: true}}}}, map[string]int{"may": 7}).Failed()
	require.False(t, ok)
}

func TestSourcesFollowStagesAndNeeds(t *testing.T) {
	p, err := New(Graph{Stages: []string{"x", "y", "z"}, Nodes: []Node{
		{Name: "y1", Stage: 1},
		{Name: "x1"},
		{Name: "x2"},
		{Name: "y2", Stage: 1, After: Control | Values},
		{Name: "z1", Stage: 2, After: stageNeeds, Needs: []Need{{Name: "x1", Edge: Files}, {Name: "z2", Edge: Files}}},
		{Name: "z2", Stage: 2, Needs: []Need{
			{Name: "y2", Edge: Values},
			{Name: "x2", Edge: Files},
			{Name: "y1", Edge: Files},
			{Name: "x2", Edge: Files},
			{Name: "gone", Edge: Files, Optional: true},
		}},
	}})
	require.NoError(t, err)
	for name, want := range map[string][2]string{
		"y1": {"", ""}, "y2": {"", "x1 x2"}, "z1": {"x1 x2 y1 y2 z2", "x1 x2 y1 y2"}, "z2": {"x2 y1", "y2"},
	} {
		i, ok := p.Find(name)
		require.True(t, ok)
		for k, edge := range []Edge{Files, Values} {
			var got []string
			for v := range p.Sources(i, edge) {
				got = append(got, p.Node(v).Name)
			}
			require.Equal(t, want[k], strings.Join(got, " "), name)
		}
	}
}

// The first of several ready nodes is the first of the graph, also after it waited for its group.
func TestNodesStartInTheOrderOfTheGraph(t *testing.T) {
	p, err := New(Graph{Groups: []Group{{Name: "m", Max: 1}}, Nodes: []Node{
		{Name: "0", Groups: []string{"m"}},
		{Name: "1", Groups: []string{"m"}},
		{Name: "2"},
		{Name: "3", Groups: []string{"m"}},
		{Name: "4", Free: true},
		{Name: "5"},
	}})
	require.NoError(t, err)
	now := time.Now()
	r := p.Begin(now)
	take := func(slot bool) int {
		if node, ok := r.Take(slot, now); ok {
			return node
		}
		return -1
	}
	require.Equal(t, []int{4, -1, 0, 2}, []int{take(false), take(false), take(true), take(true)})
	r.End(0, Result{}, now)
	require.Equal(t, []int{1, 5, -1}, []int{take(true), take(true), take(true)})
	r.End(1, Result{}, now)
	require.Equal(t, []int{3, -1}, []int{take(true), take(true)})
	require.ErrorContains(t, r.Play(3, now), `start the job "3": its state is running, not manual`)
	require.Panics(t, func() { r.Finish(now) })
	require.Panics(t, func() { r.End(0, Result{}, now) })
}

// A chain and stages as long as the bounds are carried out without recursion.
func TestTheLargestGraphs(t *testing.T) {
	for _, g := range []Graph{chain(MaxNodes), twoStages(MaxNodes)} {
		r := script(t, g, map[string]int{"0": 1})
		require.Equal(t, 1, r.Count(Failed))
		_, failed := r.Failed()
		require.True(t, failed)
		r = script(t, g, nil)
		require.Equal(t, MaxNodes, r.Count(Succeeded))
	}
	g := chain(MaxNodes)
	g.Nodes[0].Manual = true
	r := script(t, g, nil)
	require.Equal(t, `blocked by "0"`, r.Why(MaxNodes-1))
}

// chain returns n nodes, each of which needs the one before.
func chain(n int) Graph {
	list := make([]Node, n)
	for i := range list {
		list[i].Name = fmt.Sprint(i)
		if i > 0 {
			list[i].Needs = []Need{{Name: list[i-1].Name, Edge: stageNeeds}}
		}
	}
	return Graph{Nodes: list}
}

// twoStages returns n nodes in two stages.
func twoStages(n int) Graph {
	g := Graph{Stages: []string{"build", "test"}, Nodes: make([]Node, n)}
	for i := range g.Nodes {
		g.Nodes[i] = Node{Name: fmt.Sprint(i), Stage: i * 2 / n, After: stageNeeds}
	}
	return g
}

// dense returns n nodes, each of which needs the given number of earlier ones.
func dense(n, needs int) Graph {
	g := Graph{Nodes: make([]Node, n)}
	for i := range g.Nodes {
		g.Nodes[i].Name = fmt.Sprint(i)
		for k := range min(i, needs) {
			g.Nodes[i].Needs = append(g.Nodes[i].Needs, Need{Name: g.Nodes[i-1-k].Name, Edge: stageNeeds})
		}
	}
	slices.Reverse(g.Nodes)
	return g
}
