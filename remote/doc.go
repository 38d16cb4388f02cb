// Package remote is the VM's end: what runs as `stepmux steps serve`, `stepmux steps proxy` and `stepmux steps
// relay`.
//
// [Serve] owns everything of one build on its VM: a private directory with the socket and the state of
// its jobs, the processes of those jobs, and the promise that none of it outlives the build. Its stdin
// is a leash: an SSH server does not end the process of a channel that closed, it only closes the
// process's stdin, so that is what Serve watches. The directory is locked while Serve lives; what no
// living process has locked is swept by the next Serve, and a serve killed with SIGKILL leaves nothing
// for long.
//
// [Proxy] carries bytes between its stdio and that socket, for a manager that reaches the VM by exec
// only.
//
// [Relay] does the work of many sessions in one: for a manager that speaks its protocol it starts the serves of
// any number of builds and connects to their sockets. Its stdin is a leash too, and what it has started does
// not outlive it.
//
// Where files go is told by the socket's path, and by nothing in the environment. The package knows no SSH
// and no manager; internal/wire holds what both ends agree on. It runs on Linux.
package remote
