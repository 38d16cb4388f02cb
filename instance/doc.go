// Package instance is the executor of builds on VMs ("instances"). It decides which VM a build gets and over which
// shared connection it runs, and classifies how it ended.
//
// A [Provider] owns the connections to the VMs and makes an [Executor] for each [Build]. A [Group] holds the VMs and
// how many builds each takes at once; [Group.Follow] keeps it up to date. Every failure of a build is a [BuildError].
//
// The caller ends an Executor with Cleanup and the Provider with Shutdown or Close. Package batch runs many builds;
// control, doctor, inventory and metrics are for operators. The failure policy is in health.go and connections.go:
// failed dials are retried after a backoff, refused logins are not, and a VM that cannot be reached is quarantined.
package instance
