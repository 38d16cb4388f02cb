// Package relay is the relay's server end on the VM: one process that starts processes and connects to the sockets of
// builds for a manager, over one stdin and stdout. docs/protocol.md has the protocol, mux/relay the client's end.
//
// [Run] serves one manager. The bytes are a yamux session (link.go); every stream of it begins with one request
// (stream.go), which starts a process (process.go, pipes.go) or connects to a socket (connect.go). ready.go lets a
// connect wait for the process that will listen, and spare.go prestarts the next build's serve.
//
// The relay owns the processes it starts. A process ends with its stream, and all of them end with the relay: Run
// returns only after it has killed everything that descends from them. [Command] is a command as sshd would start it.
package relay
