// Package faults breaks things while real builds run, and holds what the product then says against what really
// happened.
//
// A run is many rounds. Each is a process of its own, with an sshd for each of its VMs, the manager's end, the real
// program as the VM's end, one kind of fault and one route; what happens in it follows from the run's seed and the
// round's number. As root a round has its own network, mounts and processes (namespaces(7)): its VMs are on networks
// of their own, and nothing outlives it.
//
// What is true is learned without the product: scripts keep a ledger in a file, logs are streams of which every
// prefix is known, processes, sockets and files are looked for by the kernel's own lists.
package faults
