// Package claims decides which of several managers uses which VM of their fleet.
//
// A [Member] is a manager: Join takes part, Run renews its lease and takes its share of the VMs, Leave gives them up.
// The rules that keep two managers from using one VM at a time are in member.go; claims.go divides the VMs. Leases and
// claims are kept in the store of the managers. Config has the calls to the manager; no lock is held then.
package claims
