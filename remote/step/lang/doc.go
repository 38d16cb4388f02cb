// Package steps is the language that jobs and steps are written in: it reads them and says exactly what is
// wrong with them. docs/language.md teaches it.
//
// [Parse] reads a job and [ParseStep] a step from YAML, [FromProto] the entries of a request, [Script] a
// bare shell script. All of them compile to a Definition of remote/api/stepmuxv1, the one form the engine
// runs and further front ends will compile to. There are two dialects, that of today and, for steps whose
// definition has a type, that of the blueprint; the Definition tells which.
//
// Texts are read strictly: what is not known, not of the right type or said twice is an error that names
// its place and what to change, never something that is ignored. That goes for the names in expressions,
// too: those of inputs, and of steps that run later or never. What a JSON Schema can tell of all that,
// [Schema] tells.
//
// Reading is bounded in time and memory whatever the input: by the size of the text, the depth of its
// nesting, and what its aliases amount to. Errors never quote values, which may be secret.
//
// The package does no I/O. Its functions may be called from any goroutine; a Definition must not be
// changed.
package lang
