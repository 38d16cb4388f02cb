// Package replay runs again what a trace tells of: the same job, with the same variables and environment, of the same
// components and programs. docs/trace.md says what that means for whoever uses it.
//
// [Prepare] checks all that can be checked before anything runs: that the trace's definition is one that a text could
// have become, that each component that was fetched is there as it was, from the cache or from where it came from,
// that those of the project and the programs still have their digests, and that a value was given for everything that
// is masked. What is not as it was is refused then. A [Plan] is a job like any other from there on.
package replay
