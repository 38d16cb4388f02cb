// Package recording makes traces of jobs while they run.
//
// A [Recorder] implements the Events of an engine's Runner. It keeps the events, computes digests of the steps' output
// with a [Tap] for each stream, and returns the trace at the end, because only then all secrets are known. Its maker
// closes it, which ends the goroutines of the taps. [Paths] replaces paths by markers, and [File] is the file of a
// trace, with room reserved on the disk. Package trace has the format.
package recording
