// Package lang is the language of jobs and steps: it reads their texts, compiles them, and reports mistakes with their
// place. docs/language.md teaches the language.
//
// [Parse] reads a job and [ParseStep] a step from YAML, [FromProto] reads the steps of a request, and [Script] makes a
// job from a bare shell script. All of them compile to a Definition of remote/api/stepmuxv1, the only form that the
// engine runs. Other front ends, such as gitlabci, use [Load] and [FromNode]. There are two dialects: today's, and the
// blueprint's for steps whose definition has a type. A Definition names its dialect.
//
// Reading is strict. An unknown key, a wrong type or a duplicate is an error that names its place and a remedy; nothing
// is ignored. That includes the names in expressions, even of inputs and steps that are used later or never. [Schema]
// is a JSON Schema with all rules that a schema can express.
//
// Time and memory are bounded for any input: by the size of the text, the depth of its nesting, and the cost of its
// aliases. Errors never quote values, because they may be secret.
//
// The package does no I/O and owns nothing. Its functions may be called from any goroutine. Do not change a Definition.
package lang
