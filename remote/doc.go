// Package remote is the VM's end: the commands `stepmux steps serve`, `proxy` and `relay`, and the runner of scripts.
// It runs on Linux.
//
//   - [Serve] is the step runner of one build. It owns the build's private directory, the socket in it, the jobs and
//     their processes, and removes all of them when it ends. Its stdin is a leash: when an SSH channel closes, the SSH
//     server does not end the channel's process, it only closes the process's stdin.
//   - [Proxy] carries bytes between its stdio and a build's socket, for a manager that reaches the VM by exec only.
//   - [Relay] does the work of many sessions in one: it starts the serves of any number of builds and connects to
//     their sockets. Its stdin is a leash too, and its processes end with it.
//   - [Script] runs one script for a manager, without a step runner.
//
// A program that calls Serve or Script calls [proc.Main] as the first line of its main: it is executed again for the
// processes of jobs. For steps that fetch, archive or download it is also executed with its commands, those of packages
// remote/commands/doors and remote/commands/network. cmd/stepmux-vm shows how.
//
// A serve that is killed with SIGKILL leaves its directory behind, but the kernel releases the lock on it. The next
// serve or relay on that VM removes it. Only the socket's path decides where files go, never the environment.
//
// Below the doors: socketdir has the directories and sockets, relay the relay, pipe the stdio, proc the processes, job
// the jobs and their gRPC services. The package knows no SSH and no manager. internal/wire has the contract of both
// ends.
package remote
