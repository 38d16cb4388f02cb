package pipeline

import (
	"slices"
	"time"
)

// The bounds of a graph.
const (
	// MaxNodes bounds the nodes.
	MaxNodes = 10_000
	// MaxNeeds bounds the explicit needs of all nodes. What nodes need by their stages does not count.
	MaxNeeds = 500_000
)

// Graph describes nodes and their needs. The zero value has no nodes.
type Graph struct {
	// Nodes are the nodes. Their order decides which of several ready nodes starts first.
	Nodes []Node
	// Stages are the names of the stages, in order. May be empty.
	Stages []string
	// Groups limit the nodes that name them. A group that only nodes name has no limit.
	Groups []Group
}

// Node is a job of a graph.
type Node struct {
	// Name is the name of the node, which no other has.
	Name string
	// Place says where the node stands in its text. Errors begin with it, unless it is empty.
	Place string
	// Stage is the index of the node's stage in Graph.Stages. It has no meaning if there are no stages.
	Stage int
	// After has the things that all nodes of the earlier stages give to the node. If zero, the node does not wait for
	// them.
	After Edge
	// Needs are explicit needs.
	Needs []Need

	// When is the condition under which the node runs.
	When Condition
	// Strict says that a skipped need is no success: after one, OnSuccess and OnFailure do not hold, and Always does.
	Strict bool
	// Manual says that the node waits for [Progress.Play]. If it is Optional, those that need it do not wait for that,
	// and count it as skipped; else they are blocked.
	Manual, Optional bool
	// Delay is the time between the end of the needs and the start.
	Delay time.Duration
	// Retries is how often the node starts again after a failure that RetryOn matches, each time after RetryWait.
	Retries   int
	RetryOn   Match
	RetryWait time.Duration
	// MayFail matches the failures that do not fail the pipeline.
	MayFail Match
	// Groups are the names of groups.
	Groups []string
	// Free says that the node takes no slot.
	Free bool
}

// Need is a need of a node.
type Need struct {
	// Name is the name of the needed node.
	Name string
	// Edge has the things that the node gets. It waits for the needed node in any case.
	Edge Edge
	// Optional says that the needed node may be missing from the graph.
	Optional bool
}

// Edge is a set of the things that a node gets from another.
type Edge uint8

// The things that a node gets from another.
const (
	// Control lets the outcome of the other node decide whether the node runs.
	Control Edge = 1 << iota
	// Files are files that the other node has made.
	Files
	// Values are values that the other node has computed, such as variables.
	Values
)

// Condition says after which outcomes of its needs a node runs.
type Condition uint8

// The conditions.
const (
	// OnSuccess holds unless a need has failed or was cancelled. Failures that may be do not count.
	OnSuccess Condition = iota
	// OnFailure holds if a need has failed.
	OnFailure
	// Always holds, unless needs were cancelled and no need has failed.
	Always
	// Asked holds in any case, also in a run that is cancelled: the caller decides when the node starts, and reports a
	// Result with As if the node shall not run.
	Asked
)

// holds reports whether the condition holds after needs with these outcomes.
func (c Condition) holds(seen outcomes, strict bool) bool {
	missing := strict && seen.has(skipped)
	switch c {
	case Asked:
		return true
	case OnSuccess:
		return !seen.has(failed) && !seen.has(cancelled) && !missing
	case OnFailure:
		return seen.has(failed) && !missing
	default:
		return missing || seen.has(failed) || !seen.has(cancelled)
	}
}

// Group is a limit for nodes.
type Group struct {
	Name string
	// Max bounds how many nodes of the group run at once. If zero, there is no bound. With 1, the group is a mutex.
	Max int
	// FailFast says that the failure of a node cancels all others of the group.
	FailFast bool
}

// Match matches failures. The zero value matches no failure.
type Match struct {
	// Any matches all failures.
	Any bool
	// ExitCodes and Reasons match failures with one of them.
	ExitCodes []int
	Reasons   []string
}

func (m Match) matches(r Result) bool {
	return m.Any || slices.Contains(m.ExitCodes, r.ExitCode) || slices.Contains(m.Reasons, r.Reason)
}

// Result is how an attempt of a node has ended.
type Result struct {
	// Err is nil if the attempt succeeded.
	Err error
	// ExitCode and Reason describe a failure, for a [Match]. Reason is a word of the caller's.
	ExitCode int
	Reason   string
	// As is Skipped or Cancelled if the caller has decided that the node ends so, whatever Err says; else it is zero. Why
	// says the reason in a few words.
	As  State
	Why string
}
