// Package joblog keeps the output of one stream of a job: append-only, as raw bytes, readable from any offset by any
// number of readers while it grows.
//
// A [Log] is a file, or memory while it is short. It does not split lines: readers get the bytes at the offsets at
// which they were written. The writer is the pump of a running process. So a Write never waits for a reader, and never
// reports a full disk, because that would block or kill the process; [Log.Err] reports it. A log with a limit drops
// bytes that have been read when it needs room, and keeps the others.
//
// The job owns the log: it calls Close after the last Write, and Remove after the last read.
package joblog
