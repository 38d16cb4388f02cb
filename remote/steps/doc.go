// Package steps is the language a job is written in: it reads jobs and says exactly what is wrong with
// them.
//
// [Parse] reads YAML, [FromProto] the entries of a request, [Script] a bare shell script. All three
// compile to a [Definition], the one form the engine runs and further front ends will compile to. A
// job is read strictly: what is not known, not of the right type or said twice is an error that names
// its place and what to change, never something that is ignored. References to steps (step, func,
// action) and expressions are recognised, and refused until there is something to run them.
//
// Reading is bounded in time and memory whatever the input: by the size of the text, the depth of its
// nesting, and what its aliases amount to. Errors never quote values, which may be secret.
//
// The package does no I/O. Its functions may be called from any goroutine; a Definition must not be
// changed.
package steps
