// Package provenance writes a trace in forms that other tools check: [Statement] is an in-toto Statement v1 with SLSA
// provenance v1 about a job, and [Links] are statements with a link v0.3 about each of its commands. docs/trace.md maps
// the parts of a trace to them.
//
// They contain nothing of masked values, not even HMACs. [Key.Sign] signs a statement, [Key.Verify] compares a signed
// one with files and a trace. The package owns nothing.
package provenance
