// Package lang is the language of jobs and steps: it reads their texts, compiles them, and reports mistakes with their
// place. docs/language.md teaches the language.
//
// [Parse] reads a job and [ParseStep] a step from YAML, [FromProto] reads the steps of a request, [Script] makes a job
// of a bare shell script. All of them compile to a Definition of remote/api/stepmuxv1, the only form that the engine
// runs; other front ends, such as gitlabci, compile to it through [Load] and [FromNode]. There are two dialects:
// today's, and the blueprint's for steps whose definition has a type. The Definition tells which.
//
// Reading is strict. An unknown key, a wrong type or a duplicate is an error that names its place and a remedy; nothing
// is ignored. That includes the names in expressions, even of inputs and steps that are used later or never. [Schema]
// is a JSON Schema of everything that a schema can express.
//
// Time and memory are bounded for any input: by the size of the text, the depth of its nesting, and the cost of its
// aliases. Errors never quote values, which may be secret.
//
// The package does no I/O and owns nothing. Its functions may be called from any goroutine. A Definition must not be
// changed.
package lang
