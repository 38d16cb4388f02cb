// Package faults breaks things while real builds run, and compares the product's account of each build with the truth.
//
// A Campaign is many rounds. A round is a process of its own with an sshd for each of its VMs, the manager's end, the
// real program as the VM's end, one kind of fault (kind.go) and one route. The campaign's seed and the round's number
// decide everything in it (Plan), so that a round can be repeated. As root a round has its own network, mounts and
// processes (namespaces(7)): its VMs are on networks of their own, and nothing outlives it. A keeper process ends all
// processes of its round. Command faultrig runs campaigns and soaks.
//
// The truth does not come from the product: scripts keep a ledger in a file, every prefix of a log is known, and
// processes, sockets and files come from the kernel's own lists.
package faults
