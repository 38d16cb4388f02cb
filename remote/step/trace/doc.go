// Package trace has the format of traces: a trace records each step of a job, its origin, its inputs and its results,
// so that runs can be compared, checked and repeated. docs/trace.md describes the file, docs/steptrace-v2.json is its
// JSON Schema.
//
// [Parse] reads a [Trace], [Trace.Encode] writes it. Package recording makes traces, package inspect prints and
// compares them.
//
// A Trace has two halves. Two runs of a deterministic job have the same [Identity], byte for byte in its canonical
// form (RFC 8785), and so the same id, its SHA-256. Times, process ids and paths differ from run to run: they are in
// [Volatile]. Markers replace paths in the identity, such as @work for the job's directory.
//
// A trace has no secrets. An HMAC with a salt of the trace replaces each value that is or holds one: it shows whether
// two values are equal, and hides them. A value that is easily guessed can be found by trying.
package trace
