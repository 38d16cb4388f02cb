// Package expression evaluates the expressions of GitHub Actions: the text between ${{ and }} in an action.yml or a
// workflow.
//
// [Evaluate] computes one expression, and [Template] a text that contains expressions. A [Scope] has the contexts and
// the functions in addition to the built-in ones. A [Value] is immutable and safe for concurrent use; the package keeps
// no state.
//
// The rules are those of GitHub's runner: loose comparison, names and texts that ignore case, null for missing
// properties. Errors are in the runner's words, with the position. Length, depth and the memory of results are bounded.
// Package expr has another language: that of steps.
package expression
