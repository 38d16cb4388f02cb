// Package streams carries many streams over one byte stream, in the format of yamux, version 0
// (github.com/hashicorp/yamux, spec.md). The other end may be that library.
//
// A [Session] is one end of the link: Run receives, and everything that is sent goes through a [coalesce.Writer]. A
// [Stream] ends in each direction by itself, and has a window in each. Calls that wait take a channel that stops them.
//
// Compared with the library a byte is copied once less on its way out and passes two goroutines less; a stream keeps
// memory only while bytes wait in it. A peer that breaks the protocol ends the session: it cannot make this end keep
// more than a window for each stream, or answer more than a few pings.
//
// The owner of a Session runs Run in a goroutine and calls Close. Whoever opens or accepts a Stream closes it.
package streams
