// Package joblog keeps the output of one stream of a job: append-only, raw bytes, in a file, readable
// from any offset by any number of readers while it grows.
//
// A [Log] knows no lines: what was written is what is read, at the offset it was written at, as soon as
// it was written. The writer is the pump of a running process, so it never waits for a reader and is
// never told of a full disk, which would block or kill the process; see [Log.Err] for that.
package joblog
