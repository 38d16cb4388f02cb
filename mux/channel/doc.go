// Package channel holds the types that every route to a VM shares: a [Stream] of bytes, a [Process], and the
// [Command] that starts one.
//
// A Stream is a net.Conn. It adds deadlines, addresses and wake-ups to a [Transport], which moves the bytes by one
// route: an SSH channel (package mux) or a stream of a relay (package mux/relay). Whoever opens a Stream or starts a
// Process closes it; a Transport ends with its Stream, or with the connection under it.
//
// Users of mux and mux/relay get these types from there. The package knows no SSH and no relay.
package channel
