// Package trace is what a job leaves to show what it did: of each step what it was, where that came from, what went
// in and what came out, in a form that can be compared, checked and repeated. docs/trace.md describes the file, and
// docs/steptrace-v1.json is its JSON Schema.
//
// A [Trace] has two halves. Its identity says what was run and what came of it; two runs of a job that does the same
// each time have the same identity, byte for byte in its canonical form (RFC 8785), and the same id, which is the
// SHA-256 of that. What differs from run to run, as times, process ids and paths, is in the volatile half. Paths stand
// in the identity as markers, such as @work for the job's directory; [Paths] knows them.
//
// No secret is in a trace. In the place of a value that is or holds one is an HMAC of it, by a salt of the trace's
// own: who knows the value can see that it is the same, and nobody can read it. A value that is easily guessed can be
// found by trying, as from any such sum.
package trace
