// Package mux carries many channels over one SSH connection.
//
// A [Conn] starts processes ([Conn.Start]) and reaches sockets ([Conn.DialUnix], [Conn.Dial]) on one
// VM, any number at once, over one TCP connection. It keeps to the number of sessions the server
// allows, finds a dead peer within a stated bound, and never lets a lost connection look like a
// clean end: where the SSH library says io.EOF after a death, this package says [ConnError].
//
// It knows no builds and no pool.
package mux
