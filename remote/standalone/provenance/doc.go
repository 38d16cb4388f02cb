// Package provenance writes a trace in the forms that other tools check: [Statement] is an in-toto Statement v1 with
// SLSA provenance v1 about a job, [Links] are statements with a link v0.3 about each of its commands. docs/trace.md
// maps the parts of a trace to them.
//
// They have nothing of masked values, not even an HMAC. They are not signed: the owner of a trusted machine signs
// them with other tools.
package provenance
