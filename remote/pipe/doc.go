// Package pipe has the plumbing of the VM's commands: their stdin and stdout, and the copying between those and
// sockets.
//
//   - [File] is a stdin or stdout on which a blocked Read or Write ends when the file is closed.
//   - [Leash] turns the end of stdin into the end of a context: the manager is gone.
//   - [Lines] reads the lines that come before everything else on stdin: a socket's path and a secret.
//   - [Control] is the socket by which a relay hands a serve another build.
//   - [Raw] and [Copy] carry bulk with few switches between threads.
//
// The caller closes its files. A function that starts a goroutine returns a function that stops it and waits for it.
// The package knows no sockets, jobs or relays.
package pipe
