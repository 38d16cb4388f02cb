// Package elastic decides how many VMs a group has: which are made, drained and deleted, and when.
//
// [New] compiles a [Config] to a [Policy]. [Policy.Next] is a pure function: it takes a [State], which is all that is
// known about the VMs and the demand for them, and the time, and returns a [Decision] with its reasons. It has no
// goroutines, no clock and no memory, so that a simulation and a manager make the same decisions.
//
// Two rules hold for each decision, whatever the state: a VM that is in use is not deleted, and no VM is deleted that
// did not take part as a draining one in the state, so that it gets no build between the decision and its end.
package elastic
