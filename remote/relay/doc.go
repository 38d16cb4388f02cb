// Package relay is the relay's server end on the VM: one process that starts processes and connects to the sockets of
// builds for a manager, over one stdin and stdout. docs/protocol.md has the protocol, mux/relay the client's end.
//
// [Run] serves one manager. The bytes are a yamux session (link.go). Each stream begins with a request (stream.go): to
// start a process (child.go, pipes.go) or to connect to a socket (connect.go). ready.go lets a connect wait for the
// process that will listen, and spare.go prestarts the next build's serve.
//
// The relay owns the processes it starts. A process ends with its stream, and all of them end with the relay: before
// Run returns, it kills all their descendants, except for serves that linger (linger.go). A [Command] is started as
// sshd would start it.
package relay
