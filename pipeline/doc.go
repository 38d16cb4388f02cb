// Package pipeline decides which jobs of a graph run, and when. It knows neither SSH nor a language.
//
// A caller describes its jobs in a [Graph]: their needs, their stages, and the condition under which each runs, or
// [Asked] if only the caller can compute it. [New] checks the graph and returns a [Plan], which does not change.
// [Plan.Begin] returns a [Progress], a state machine without goroutines and clocks: it says which node may start now,
// and is told how nodes end. [Plan.Run] drives a Progress: it carries nodes out by a [Carrier], each in a goroutine of
// its own, and waits for all of them before it returns.
//
// A stage is one vertex of the graph (a barrier), not an edge for each pair of jobs: the cost of a plan is linear in
// its nodes and explicit needs. [MaxNodes] and [MaxNeeds] bound both.
package pipeline
