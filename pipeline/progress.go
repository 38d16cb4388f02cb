package pipeline

import (
	"container/heap"
	"fmt"
	"slices"
	"time"
)

// Progress is the state of a plan that is carried out. Its methods take the time, and start nothing: the caller starts
// the nodes that Take returns, stops those that Stops returns, and reports each end by End. It is not safe for
// concurrent use.
type Progress struct {
	plan    *Plan
	nodes   []Status
	inputs  []inputs // by vertex
	settled []bool   // by vertex: those that need it know its outcome
	queue   []int32  // vertices that have settled, whose dependents do not know it yet

	ready, free nodes // Ready nodes that take a slot, and that take none
	delayed     dues
	groups      []group
	counts      [Blocked + 1]int // nodes by state
	stops       []int
	changes     []int
	changed     []bool // the nodes in changes
	failed      int    // the first node that failed, or -1
	last        int    // the node that ended last, of those that ran; -1 without one
}

// group is the state of a group of nodes.
type group struct {
	running int
	parked  nodes // Ready nodes that wait for room in the group
}

// Begin returns the progress of a run that begins now.
func (p *Plan) Begin(now time.Time) *Progress {
	r := &Progress{
		plan: p, nodes: make([]Status, p.Len()), inputs: make([]inputs, p.vertices()), settled: make([]bool, p.vertices()),
		changed: make([]bool, p.Len()), groups: make([]group, len(p.groups)), failed: -1, last: -1,
	}
	r.counts[Waiting] = p.Len()
	for v := range r.nodes {
		r.nodes[v].cause = -1
	}
	for v := range r.inputs {
		r.inputs[v].open, r.inputs[v].last = p.in.count(int32(v)), -1
	}
	for v := range r.inputs {
		if r.inputs[v].open == 0 {
			r.arrive(int32(v), now)
		}
	}
	r.spread(now)
	return r
}

// Plan returns the plan of the run.
func (r *Progress) Plan() *Plan { return r.plan }

// Status returns the status of a node.
func (r *Progress) Status(node int) Status { return r.nodes[node] }

// Changes returns the nodes whose state has changed since the last call, each once, in the order of their first change.
func (r *Progress) Changes() []int {
	list := r.changes
	r.changes = nil
	for _, v := range list {
		r.changed[v] = false
	}
	return list
}

// set changes the state of a node.
func (r *Progress) set(v int32, s State, now time.Time) {
	n := &r.nodes[v]
	r.counts[n.State]--
	r.counts[s]++
	n.State = s
	if s.Final() {
		n.Ended = now
	}
	if !r.changed[v] {
		r.changed[v] = true
		r.changes = append(r.changes, int(v))
	}
}

// arrive is called when all inputs of a vertex have settled.
func (r *Progress) arrive(v int32, now time.Time) {
	if int(v) >= r.plan.Len() {
		r.settle(v)
		return
	}
	if r.nodes[v].State != Waiting { // it was cancelled
		return
	}
	n, in := r.plan.Node(int(v)), &r.inputs[v]
	switch {
	case !n.When.holds(in.seen, n.Strict):
		r.nodes[v].cause = in.cause(n)
		r.end(v, Skipped, now)
	case n.Manual:
		r.set(v, Manual, now)
		if n.Optional {
			r.settle(v)
		}
	default:
		r.delay(v, n.Delay, now)
	}
}

// cause returns the node because of which the condition of n does not hold, or -1.
func (in *inputs) cause(n *Node) int32 {
	order := []outcomes{failed, cancelled, skipped}
	switch n.When {
	case Always:
		order = []outcomes{cancelled}
	case OnFailure:
		order = []outcomes{skipped}
	case OnSuccess, Asked:
	}
	for _, bit := range order {
		if in.seen.has(bit) && (bit != skipped || n.Strict) {
			return in.first[bit.index()]
		}
	}
	return -1
}

// index returns the number of the single outcome o.
func (o outcomes) index() int {
	k := 0
	for ; o > 1; o >>= 1 {
		k++
	}
	return k
}

// delay makes a node ready after some time.
func (r *Progress) delay(v int32, wait time.Duration, now time.Time) {
	if wait <= 0 {
		r.makeReady(v, now)
		return
	}
	r.nodes[v].Due = now.Add(wait)
	r.set(v, Delayed, now)
	heap.Push(&r.delayed, due{at: r.nodes[v].Due, node: v})
}

func (r *Progress) makeReady(v int32, now time.Time) {
	r.set(v, Ready, now)
	r.offer(v)
}

// offer puts a Ready node where Take finds it.
func (r *Progress) offer(v int32) {
	if r.plan.Node(int(v)).Free {
		heap.Push(&r.free, v)
	} else {
		heap.Push(&r.ready, v)
	}
}

// end gives a node its final state.
func (r *Progress) end(v int32, s State, now time.Time) {
	r.set(v, s, now)
	if s.Ran() {
		r.last = int(v)
	}
	if s == Failed {
		if r.failed < 0 {
			r.failed = int(v)
		}
		for _, name := range r.plan.Node(int(v)).Groups {
			if g := r.plan.groupOf[name]; r.plan.groups[g].FailFast {
				r.cancel(r.plan.members[g], v, now)
			}
		}
	}
	r.settle(v)
}

// settle records that a vertex has an outcome. spread tells those that need it.
func (r *Progress) settle(v int32) {
	if !r.settled[v] {
		r.settled[v] = true
		r.queue = append(r.queue, v)
	}
}

// spread tells the vertices that need a settled one.
func (r *Progress) spread(now time.Time) {
	for len(r.queue) > 0 {
		v := r.queue[0]
		r.queue = r.queue[1:]
		in, last := &r.inputs[v], r.inputs[v].last
		if int(v) < r.plan.Len() {
			state := r.nodes[v].State
			in = &inputs{seen: state.outcome()}
			in.first[in.seen.index()] = v
			if last = -1; state.Ran() {
				last = v
			}
		}
		for w, kind := range r.plan.out.of(v) {
			to := &r.inputs[w]
			if kind&Control != 0 {
				to.add(in)
			}
			if last >= 0 {
				to.last = last
			}
			if to.open--; to.open == 0 {
				r.arrive(w, now)
			}
		}
	}
}

// Advance makes nodes ready whose delay has ended.
func (r *Progress) Advance(now time.Time) {
	for len(r.delayed) > 0 && !r.delayed[0].at.After(now) {
		d := heap.Pop(&r.delayed).(due)
		if n := &r.nodes[d.node]; n.State == Delayed {
			r.makeReady(d.node, now)
		}
	}
}

// Wake returns the time at which the next delay ends.
func (r *Progress) Wake() (at time.Time, ok bool) {
	for len(r.delayed) > 0 && r.nodes[r.delayed[0].node].State != Delayed {
		heap.Pop(&r.delayed) // it was cancelled
	}
	if len(r.delayed) == 0 {
		return at, false
	}
	return r.delayed[0].at, true
}

// Take returns a node that may start now, which is Running from then on. Without a slot it takes only Free
// nodes.
func (r *Progress) Take(slot bool, now time.Time) (node int, ok bool) {
	if v, ok := r.take(&r.free, now); ok {
		return v, true
	}
	if !slot {
		return 0, false
	}
	return r.take(&r.ready, now)
}

func (r *Progress) take(from *nodes, now time.Time) (node int, ok bool) {
	for len(*from) > 0 {
		v := heap.Pop(from).(int32)
		if r.nodes[v].State != Ready || r.park(v) {
			continue
		}
		for _, name := range r.plan.Node(int(v)).Groups {
			r.groups[r.plan.groupOf[name]].running++
		}
		n := &r.nodes[v]
		if n.Attempt++; n.Attempt == 1 {
			n.Began = now
		}
		r.set(v, Running, now)
		return int(v), true
	}
	return 0, false
}

// park puts a Ready node aside if one of its groups is full.
func (r *Progress) park(v int32) bool {
	for _, name := range r.plan.Node(int(v)).Groups {
		g := r.plan.groupOf[name]
		if limit := r.plan.groups[g].Max; limit > 0 && r.groups[g].running >= limit {
			heap.Push(&r.groups[g].parked, v)
			return true
		}
	}
	return false
}

// leave gives back the room of a node in its groups.
func (r *Progress) leave(v int32) {
	for _, name := range r.plan.Node(int(v)).Groups {
		g := &r.groups[r.plan.groupOf[name]]
		g.running--
		for len(g.parked) > 0 {
			next := heap.Pop(&g.parked).(int32)
			if r.nodes[next].State == Ready {
				r.offer(next)
				break
			}
		}
	}
}

// End reports that the attempt of a Running node has ended. The node starts again if it may.
func (r *Progress) End(node int, result Result, now time.Time) {
	v, n, s := int32(node), r.plan.Node(node), &r.nodes[node]
	if s.State != Running {
		panic(fmt.Sprintf("pipeline: End of %q, which is %v", n.Name, s.State))
	}
	s.Result = result
	r.leave(v)
	switch {
	case result.As == Skipped || result.As == Cancelled:
		r.end(v, result.As, now)
	case result.Err == nil:
		r.end(v, Succeeded, now)
	case s.stopped && n.When != Asked:
		r.end(v, Cancelled, now)
	case !s.stopped && s.Attempt <= n.Retries && n.RetryOn.matches(result):
		r.delay(v, n.RetryWait, now)
	case n.MayFail.matches(result):
		r.end(v, Warned, now)
	default:
		r.end(v, Failed, now)
	}
	r.spread(now)
}

// Play starts a Manual node.
func (r *Progress) Play(node int, now time.Time) error {
	if s := r.nodes[node].State; s != Manual {
		return fmt.Errorf("start the job %q: its state is %v, not %v", r.plan.Node(node).Name, s, Manual)
	}
	r.delay(int32(node), r.plan.Node(node).Delay, now)
	return nil
}

// Cancel cancels all nodes that have not ended. Those that run end when their End is reported; see Stops. Nodes that
// are Asked are not cancelled: they start when their needs have ended.
func (r *Progress) Cancel(now time.Time) {
	all := make([]int32, r.plan.Len())
	for v := range all {
		all[v] = int32(v)
	}
	r.cancel(all, -1, now)
	r.spread(now)
}

// cancel cancels the nodes of a list because of another one, or because of no node (-1).
func (r *Progress) cancel(list []int32, because int32, now time.Time) {
	for _, v := range list {
		n := &r.nodes[v]
		switch {
		case n.State.Final() || n.stopped:
		case n.State == Running:
			n.stopped, n.cause = true, because
			r.stops = append(r.stops, int(v))
		case r.plan.Node(int(v)).When == Asked:
		default:
			n.cause = because
			r.set(v, Cancelled, now)
			r.settle(v)
		}
	}
}

// Stops returns the Running nodes that are to be stopped, each once.
func (r *Progress) Stops() []int {
	list := r.stops
	r.stops = nil
	return list
}

// Idle reports whether nothing runs and nothing is about to: all nodes have ended, or wait for Manual ones.
func (r *Progress) Idle() bool { return r.counts[Ready]+r.counts[Delayed]+r.counts[Running] == 0 }

// Finish gives all nodes that have not ended the state Blocked, if the run is idle. No method of the run may be called
// after that, except those that tell how it ended.
func (r *Progress) Finish(now time.Time) {
	if !r.Idle() {
		panic("pipeline: Finish of a run that is not idle")
	}
	for v := range r.nodes {
		if r.nodes[v].State == Manual {
			r.block(int32(v))
		}
	}
	for v := range r.nodes {
		if !r.nodes[v].State.Final() {
			r.set(int32(v), Blocked, now)
		}
	}
}

// block records that a Manual node blocks those that wait for it, directly or by others.
func (r *Progress) block(manual int32) {
	for queue := []int32{manual}; len(queue) > 0; queue = queue[1:] {
		for w := range r.plan.out.of(queue[0]) {
			// The number of open inputs is not needed any more: it marks vertices that have been seen.
			if r.settled[w] || r.inputs[w].open == 0 {
				continue
			}
			r.inputs[w].open = 0
			if int(w) < r.plan.Len() {
				r.nodes[w].cause = manual
			}
			queue = append(queue, w)
		}
	}
}

// Failed returns the first node whose failure failed the run.
func (r *Progress) Failed() (node int, ok bool) { return r.failed, r.failed >= 0 }

// Count returns how many nodes are in a state.
func (r *Progress) Count(s State) int { return r.counts[s] }

// Why says in a few words why a node did not run, or was stopped. It is empty for a node that ran to its end.
func (r *Progress) Why(node int) string {
	s, n := r.nodes[node], r.plan.Node(node)
	name := ""
	if s.cause >= 0 {
		name = fmt.Sprintf("%q", r.plan.Node(int(s.cause)).Name)
	}
	switch {
	case (s.State == Skipped || s.State == Cancelled) && s.Result.Why != "":
		return s.Result.Why
	case s.State == Blocked && name != "":
		return "blocked by " + name
	case s.State == Blocked || s.State == Manual:
		return "manual"
	case s.State == Cancelled && name != "":
		return name + " failed"
	case s.State == Cancelled:
		return "cancelled"
	case s.State != Skipped:
		return ""
	case name != "":
		return fmt.Sprintf("%s: %v", name, r.nodes[s.cause].State)
	case n.When == OnFailure:
		return "nothing before it failed"
	default:
		return "its condition does not hold"
	}
}

// CriticalPath returns the nodes that decided when the run ended, in the order in which they ran: each was the last
// need of the next one.
func (r *Progress) CriticalPath() (path []int) {
	for v := r.last; v >= 0; v = int(r.inputs[v].last) {
		path = append(path, v)
	}
	slices.Reverse(path)
	return path
}
