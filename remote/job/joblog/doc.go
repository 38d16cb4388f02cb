// Package joblog keeps the output of one stream of a job in a file, or in memory while it is short: append-only, raw
// bytes, readable from any offset by any number of readers while it grows.
//
// A [Log] knows no lines: its readers get the bytes as they were written, at the offsets at which they were written.
// The writer is the pump of a running process, so a Write never waits for a reader and never reports a full disk,
// which would block or kill the process; [Log.Err] reports it. The job owns the log: it closes it after the last
// Write, and removes it. A log with a limit keeps the bytes that no reader has had, and drops those that have been
// read when it needs room.
package joblog
