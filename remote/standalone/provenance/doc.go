// Package provenance tells what a trace says in the forms that others check: an in-toto Statement v1 with SLSA
// provenance v1 about a job, or with a link v0.3 about each command of it. docs/trace.md says which part of a trace
// becomes what.
//
// What is masked in the trace is nowhere in them, not even as an HMAC. They are not signed: whoever trusts the machine
// that made them signs them, with the tools there are for that.
package provenance
