package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Plan is a graph that has been checked. It does not change, and is safe for concurrent use.
//
// Its vertices are the nodes, and behind them one barrier for each stage. A barrier is passed when all nodes of its
// stage have ended, and the barrier before it is passed.
type Plan struct {
	graph   Graph
	index   map[string]int32
	groupOf map[string]int32
	groups  []Group
	members [][]int32 // nodes, by group

	in, out   edges
	byStage   []int32 // nodes, by stage and then by index
	stageEnds []int32 // where the nodes of a stage end in byStage
}

// edges are the edges of all vertices in one direction: those of vertex v are from start[v] to start[v+1].
type edges struct {
	start []int32
	other []int32
	kind  []Edge
}

func (e edges) of(v int32) iter.Seq2[int32, Edge] {
	return func(yield func(int32, Edge) bool) {
		for i := e.start[v]; i < e.start[v+1]; i++ {
			if !yield(e.other[i], e.kind[i]) {
				return
			}
		}
	}
}

func (e edges) count(v int32) int32 { return e.start[v+1] - e.start[v] }

// New checks a graph and returns its plan. The plan keeps the slices of the graph, which may not change any more. An
// error names the node, with its place: a name that occurs twice, a need that does not exist, or a loop of needs.
func New(g Graph) (*Plan, error) {
	if len(g.Nodes) > MaxNodes {
		return nil, fmt.Errorf("the pipeline has %d jobs, and at most %d can run; split it", len(g.Nodes), MaxNodes)
	}
	p := &Plan{graph: g, index: make(map[string]int32, len(g.Nodes)), groupOf: map[string]int32{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if _, twice := p.index[n.Name]; twice {
			return nil, n.errorf("two jobs have the name %q; rename one", n.Name)
		}
		if len(g.Stages) > 0 && (n.Stage < 0 || n.Stage >= len(g.Stages)) {
			return nil, n.errorf("the job %q has the stage number %d, and there are %d", n.Name, n.Stage, len(g.Stages))
		}
		p.index[n.Name] = int32(i)
	}
	p.readGroups()
	p.sortStages()
	if err := p.connect(); err != nil {
		return nil, err
	}
	return p, p.checkLoops()
}

// errorf returns an error that begins with the place of the node.
func (n *Node) errorf(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if n.Place != "" {
		text = n.Place + ": " + text
	}
	return errors.New(text)
}

// Len returns the number of nodes.
func (p *Plan) Len() int { return len(p.graph.Nodes) }

// Node returns the node with an index. The caller may not change it.
func (p *Plan) Node(i int) *Node { return &p.graph.Nodes[i] }

// Find returns the index of the node called name.
func (p *Plan) Find(name string) (index int, ok bool) {
	i, ok := p.index[name]
	return int(i), ok
}

func (p *Plan) readGroups() {
	add := func(g Group) int32 {
		if i, known := p.groupOf[g.Name]; known {
			return i
		}
		i := int32(len(p.groups))
		p.groupOf[g.Name], p.groups, p.members = i, append(p.groups, g), append(p.members, nil)
		return i
	}
	for _, g := range p.graph.Groups {
		add(g)
	}
	for i := range p.graph.Nodes {
		for _, name := range p.graph.Nodes[i].Groups {
			g := add(Group{Name: name})
			p.members[g] = append(p.members[g], int32(i))
		}
	}
}

// sortStages sorts the nodes by their stages. Without stages all are in one.
func (p *Plan) sortStages() {
	p.byStage = make([]int32, p.Len())
	for i := range p.byStage {
		p.byStage[i] = int32(i)
	}
	slices.SortStableFunc(p.byStage, func(a, b int32) int { return cmp.Compare(p.stage(a), p.stage(b)) })
	p.stageEnds = make([]int32, max(len(p.graph.Stages), 1))
	for _, v := range p.byStage {
		p.stageEnds[p.stage(v)]++
	}
	for s := 1; s < len(p.stageEnds); s++ {
		p.stageEnds[s] += p.stageEnds[s-1]
	}
}

func (p *Plan) stage(v int32) int {
	if len(p.graph.Stages) == 0 {
		return 0
	}
	return p.graph.Nodes[v].Stage
}

// barrier returns the vertex that is passed when the stages up to stage have ended.
func (p *Plan) barrier(stage int) int32 { return int32(p.Len() + stage) }

// vertices is the number of nodes and barriers.
func (p *Plan) vertices() int { return p.Len() + len(p.graph.Stages) }

// inputs calls add for each edge into a vertex, in the order of the vertices. add returns false to stop.
func (p *Plan) inputs(add func(to, from int32, kind Edge)) error {
	count := 0
	for i := range p.graph.Nodes {
		n := &p.graph.Nodes[i]
		if n.After != 0 && p.stage(int32(i)) > 0 {
			add(int32(i), p.barrier(n.Stage-1), n.After)
		}
		if count += len(n.Needs); count > MaxNeeds {
			return n.errorf("the jobs up to %q have more than %d needs; use stages in their place", n.Name, MaxNeeds)
		}
		for _, need := range n.Needs {
			from, there := p.index[need.Name]
			switch {
			case there:
				add(int32(i), from, need.Edge)
			case !need.Optional:
				return n.errorf("the job %q needs %q, and there is no such job", n.Name, need.Name)
			}
		}
	}
	from := int32(0)
	for s := range p.graph.Stages {
		for _, v := range p.byStage[from:p.stageEnds[s]] {
			add(p.barrier(s), v, Control)
		}
		from = p.stageEnds[s]
		if s > 0 {
			add(p.barrier(s), p.barrier(s-1), Control)
		}
	}
	return nil
}

// connect makes the edges.
func (p *Plan) connect() error {
	size := p.vertices() + 1
	p.in.start, p.out.start = make([]int32, size), make([]int32, size)
	err := p.inputs(func(to, from int32, _ Edge) {
		p.in.start[to+1]++
		p.out.start[from+1]++
	})
	if err != nil {
		return err
	}
	for v := 1; v < size; v++ {
		p.in.start[v] += p.in.start[v-1]
		p.out.start[v] += p.out.start[v-1]
	}
	total := p.in.start[size-1]
	for _, e := range []*edges{&p.in, &p.out} {
		e.other, e.kind = make([]int32, total), make([]Edge, total)
	}
	nextIn, nextOut := slices.Clone(p.in.start), slices.Clone(p.out.start)
	return p.inputs(func(to, from int32, kind Edge) {
		p.in.other[nextIn[to]], p.in.kind[nextIn[to]] = from, kind
		p.out.other[nextOut[from]], p.out.kind[nextOut[from]] = to, kind
		nextIn[to]++
		nextOut[from]++
	})
}

// checkLoops returns an error with the nodes of a loop, if there is one.
func (p *Plan) checkLoops() error {
	open := make([]int32, p.vertices())
	var free []int32
	for v := range open {
		if open[v] = p.in.count(int32(v)); open[v] == 0 {
			free = append(free, int32(v))
		}
	}
	for ; len(free) > 0; free = free[1:] {
		for w := range p.out.of(free[0]) {
			if open[w]--; open[w] == 0 {
				free = append(free, w)
			}
		}
	}
	at := slices.IndexFunc(open, func(n int32) bool { return n > 0 })
	if at < 0 {
		return nil
	}
	// Each open vertex has an open input: going back from one leads into a loop.
	seen := map[int32]int{}
	var path []int32
	for v := int32(at); ; {
		if from, again := seen[v]; again {
			return p.loopError(path[from:])
		}
		seen[v] = len(path)
		path = append(path, v)
		for w := range p.in.of(v) {
			if open[w] > 0 {
				v = w
				break
			}
		}
	}
}

// maxNamed bounds the jobs that an error names.
const maxNamed = 10

// loopError describes a loop of vertices, in which each needs the next. At least one of them is a node.
func (p *Plan) loopError(loop []int32) error {
	isNode := func(v int32) bool { return int(v) < p.Len() }
	first := slices.IndexFunc(loop, isNode)
	loop = slices.Concat(loop[first:], loop[:first])
	node := p.Node(int(loop[0]))
	var text strings.Builder
	fmt.Fprintf(&text, "%q", node.Name)
	from := loop[0]
	for i, v := range append(loop[1:], loop[0]) {
		switch {
		case i >= maxNamed && i < len(loop)-1:
			if i == maxNamed {
				text.WriteString(" ...")
			}
		case isNode(v) && isNode(from):
			fmt.Fprintf(&text, " needs %q", p.Node(int(v)).Name)
		case isNode(v):
			fmt.Fprintf(&text, " with %q", p.Node(int(v)).Name)
		case isNode(from):
			fmt.Fprintf(&text, " waits for the stage %q", p.graph.Stages[int(v)-p.Len()])
		default:
			fmt.Fprintf(&text, " after %q", p.graph.Stages[int(v)-p.Len()])
		}
		from = v
	}
	return node.errorf("the job needs itself, directly or by others: %s; remove one of these needs", text.String())
}

// Sources yields the nodes that give one of the things in edge to a node, each once, by stage and then by index.
func (p *Plan) Sources(node int, edge Edge) iter.Seq[int] {
	n := p.Node(node)
	var early []int32
	if s := p.stage(int32(node)); s > 0 && n.After&edge != 0 {
		early = p.byStage[:p.stageEnds[s-1]]
	}
	var named []int32
	for v, kind := range p.in.of(int32(node)) {
		isEarly := len(early) > 0 && int(v) < p.Len() && p.stage(v) < p.stage(int32(node))
		if kind&edge != 0 && int(v) < p.Len() && !isEarly {
			named = append(named, v)
		}
	}
	slices.SortFunc(named, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.stage(a), p.stage(b)), cmp.Compare(a, b))
	})
	named = slices.Compact(named)
	return func(yield func(int) bool) {
		for _, list := range [][]int32{early, named} {
			for _, v := range list {
				if !yield(int(v)) {
					return
				}
			}
		}
	}
}
