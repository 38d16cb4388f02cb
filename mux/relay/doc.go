// Package relay is the client's end of `stepmux steps relay`, a program on the VM that starts processes and connects to
// the sockets of builds, any number at once, over one byte stream.
//
// [New] takes any duplex byte stream to such a program: a session of an SSH connection (see mux.Conn.Relay), a pipe,
// later a container's attach or a pod's exec. A [Relay] starts processes ([Relay.Start]) and connects to sockets
// ([Relay.DialUnix]), as an SSH connection does. Its errors are an [Error] if the relay failed, and a [RefusedError] if
// it refused one request.
//
// Each process and each socket is a yamux stream, which begins with a request; docs/protocol.md has the protocol. The
// caller of New closes the Relay; whoever opens a Stream or starts a Process closes that. When a Relay ends, the
// program on the VM ends its processes.
package relay
