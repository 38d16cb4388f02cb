// Package mux carries many channels over one SSH connection.
//
// [Dial] makes a [Conn]. It starts processes ([Conn.Start]) and connects to sockets ([Conn.DialUnix], [Conn.Dial]) on
// one VM, any number at once. A [Stream] is a net.Conn; a [Process] is the Stream of a command's stdin and stdout.
// [Conn.Relay] starts a program on the VM that does the same by way of a single session.
//
// A Conn keeps to the number of sessions that the server allows, and finds a dead peer within a stated bound. It never
// lets a lost connection look like a clean end: where the SSH library returns io.EOF, it returns a [ConnError].
//
// Whoever dials closes the Conn, and whoever opens a Stream or starts a Process closes that; both also end with their
// Conn. Package mux/login has host-key policies and credentials, package mux/relay the relay, and package pool shares
// connections among many users.
package mux
