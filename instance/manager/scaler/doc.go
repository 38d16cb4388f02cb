// Package scaler makes and deletes the VMs of a group, as the policy of package elastic says.
//
// A [Scaler] lists the VMs of its [source.Source] in each period, passes them to the [Host], which is the manager, and
// asks the policy each second. [Scaler.Restore] gives the host the VMs of a manager before, and [Scaler.Run] goes on
// until its context ends.
//
// These rules keep a VM from being lost, made twice, or deleted while it is in use:
//
//   - Each request is kept before it is sent to the source, in a record that one manager of a cluster has. After a
//     crash the same request is sent again, which makes no other VMs.
//   - Before a VM is deleted, the manager that has it says that it takes no new builds and has no build, and the state
//     has no build that may run there.
//   - A list that fails, or that cannot be right, changes nothing. A VM is gone once two lists in a row do not have it.
//     An empty list counts only while no known VM answers.
package scaler
