// Package instance is the executor of builds on VMs ("instances"): which VM a build gets, over which
// shared connection, and what its end means.
//
// A [Provider] owns the VMs' connections and makes an [Executor] for each [Build]. A [Group] says
// which VMs there are and how many builds each takes at once; a [Source] may keep it up to date.
// [BuildError] is the one place where failures are classified.
package instance
