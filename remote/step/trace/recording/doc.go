// Package recording makes traces of jobs as they run.
//
// A [Recorder] implements the Events of an engine's Runner. It keeps the events, sums up the output of the steps with
// a [Tap] for each stream, and returns the trace at the end: only then are all secrets known. Its maker closes it,
// which ends the goroutines of the taps. [Paths] replaces paths by markers, and [File] is the file of a trace, with
// room reserved on the disk. Package trace has the format.
package recording
