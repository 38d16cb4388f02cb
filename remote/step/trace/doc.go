// Package trace has the format of traces. A trace records each step of a job, its origin, its inputs and its results,
// so that runs can be compared, checked and repeated. docs/trace.md describes the file, docs/steptrace-v2.json is its
// JSON Schema.
//
// [Parse] reads a [Trace], [Trace.Encode] writes it. Package recording makes traces, package inspect prints and
// compares them.
//
// A Trace has two halves. Two runs of a deterministic job have the same [Identity], byte for byte in its canonical form
// (RFC 8785), and so the same id, its SHA-256. Times, process ids and paths differ from run to run: they are in
// [Volatile]. In the identity, markers replace paths, such as @work for the job's directory.
//
// A trace has no secrets. Each value that is or contains one is replaced by an HMAC with a salt of the trace. So it can
// be seen whether two values are equal, but not the values themselves. A value that is easy to guess can still be found
// by trying.
package trace
