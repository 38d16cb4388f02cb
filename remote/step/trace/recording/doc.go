// Package recording makes traces of jobs as they run.
//
// A [Recorder] is the Events of an engine's Runner. It keeps what the engine tells, sums up the output of the steps in
// a [Tap] for each stream, and gives the job's trace at the end: only then are all secrets known. Whoever makes the
// Recorder closes it, which ends the goroutines of the taps. [Paths] replaces paths by markers, and [File] is the file
// of a trace, with room reserved on the disk. Package trace has the format.
package recording
