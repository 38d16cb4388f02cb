package pipeline

import (
	"fmt"
	"time"
)

// State is the state of a node.
type State uint8

// The states. Those from Succeeded on are final.
const (
	Waiting   State = iota // for its needs
	Manual                 // for Play
	Delayed                // for its time, before its start or before another attempt
	Ready                  // for a slot and its groups
	Running                // until End
	Succeeded              //
	Warned                 // failed, and may fail
	Failed                 //
	Cancelled              //
	Skipped                // its condition does not hold
	Blocked                // at the end it still was Manual, or waited for a node that was
)

var stateNames = [...]string{
	"waiting", "manual", "delayed", "ready", "running", "success", "warning", "failed", "cancelled", "skipped", "blocked",
}

// String returns a word for the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Final reports whether the state does not change any more.
func (s State) Final() bool { return s >= Succeeded }

// Ran reports whether a node in the final state s has run to its end.
func (s State) Ran() bool { return s == Succeeded || s == Warned || s == Failed }

// Status describes a node in a run.
type Status struct {
	State State
	// Attempt is the number of the current or last attempt, from 1. It is zero before the first.
	Attempt int
	// Began is the start of the first attempt. Ended is the time of the final state.
	Began, Ended time.Time
	// Due is the end of the delay of a Delayed node.
	Due time.Time
	// Result is that of the last attempt that has ended.
	Result Result
	// cause is the vertex because of which the node did not run, or -1.
	cause int32
	// stopped says that the node was running when it was cancelled.
	stopped bool
}

// outcomes is a set of the outcomes that count for the conditions of other nodes.
type outcomes uint8

const (
	succeeded outcomes = 1 << iota
	failed
	cancelled
	skipped
)

// kinds is the number of outcomes.
const kinds = 4

func (o outcomes) has(other outcomes) bool { return o&other != 0 }

// outcome returns how the state of a node counts for others.
func (s State) outcome() outcomes {
	switch s {
	case Succeeded, Warned:
		return succeeded
	case Failed:
		return failed
	case Cancelled:
		return cancelled
	default:
		return skipped
	}
}

// inputs describes the needs of a vertex.
type inputs struct {
	open  int32        // those that have not ended
	seen  outcomes     // of those that have
	first [kinds]int32 // the first node with each outcome in seen
	last  int32        // the node that ended last, of those that ran; -1 without one
}

// add counts the outcomes of another vertex, whose nodes are in other.
func (in *inputs) add(other *inputs) {
	for k := range kinds {
		if bit := outcomes(1 << k); other.seen.has(bit) && !in.seen.has(bit) {
			in.first[k] = other.first[k]
		}
	}
	in.seen |= other.seen
}
