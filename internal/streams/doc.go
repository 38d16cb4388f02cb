// Package streams carries many streams over one byte stream, in the format of yamux, version 0
// (github.com/hashicorp/yamux, spec.md). The other end may be that library.
//
// A [Session] is one end of the link. Its Run receives; it sends through a [coalesce.Writer]. A [Stream] has a window
// and an end of its own in each direction. Calls that wait take a channel that stops them.
//
// Compared with the library, a byte is copied once less on its way out and passes two goroutines less, and a stream
// keeps memory only while bytes wait in it. A peer that breaks the protocol ends the session. It cannot make this end
// keep more than a window for each stream, or answer more than a few pings.
//
// The owner of a Session runs Run in a goroutine and calls Close. Whoever opens or accepts a Stream closes it.
package streams
