// Package expression evaluates the expressions of GitHub Actions: the text between ${{ and }} in an action.yml or a
// workflow.
//
// [Parse] compiles the text of one expression, and [Expression.Eval] computes it. A [Scope] has the contexts and the
// functions beyond the built-in ones; both calls get the same. [Template] is for texts with expressions in them. A
// [Value] is immutable and safe for concurrent use; the package keeps no state.
//
// The rules are those of the runner of GitHub: loose comparison, names and texts that ignore case, null for properties
// that are missing. Mistakes are reported in the runner's words, with the position. Length, depth and the memory of
// results are bounded. Package expr has the language of steps, which is another one.
package expression
