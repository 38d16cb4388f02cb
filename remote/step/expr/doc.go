// Package expr is the language of what stands between ${{ and }} in a job: it reads expressions and
// texts with expressions in them, and computes their values.
//
// [ParseTemplate] reads a text with any number of expressions, [Parse] a single expression without its
// brackets. Both find all that is wrong with the syntax, and tell with References which names are
// read, so that a job can be checked before it runs. Eval computes the value from a [Scope], the names
// the caller gives a meaning.
//
//	${{ steps.build.outputs.items[0] }}          access, by name and by index
//	${{ vars.REGISTRY + "/" + inputs.image }}    + - * / %, on numbers; + on strings as well
//	${{ steps.scan.outputs.high < 5 }}           == != < <= > >=
//	${{ inputs.tag || "latest" }}                && || ! take any value and give one of them
//	${{ "v${{ str(1 + 2) }}\n" }}                a string with escapes and expressions
//	${{ 'C:\dir ${{ as it is }}' }}              a raw string: only \\ and \' are escapes
//	${{ [1, {name: "x", (inputs.key): true}] }}  arrays and objects
//	\${{                                         the text ${{ itself
//
// The functions are str(x), num(x) and bool(x). Nothing is converted but by them: "a" + 1 is an error,
// 1 == "1" is false, and 1 < "2" is an error. A name or key that is not there is an error, never an empty
// text. An expression that is all of a text keeps its type; in a text it is rendered, see [Value.Text].
//
// A [Value] can be sensitive. What is computed from it then is sensitive too, whatever the operation:
// also which of two values && chose by it. Errors quote names that are written in an expression, never
// values.
//
// Everything is bounded, whatever the input: an expression has at most 64 KiB and nests at most 100
// deep, a value has at most 16 MiB and 100 levels, and an evaluation reads and writes at most 256 MiB.
//
// The package does no I/O. All its types are immutable and safe for concurrent use.
package expr

// The limits, all of them told in the package's comment.
const (
	maxExpr  = 64 << 10
	maxDepth = 100
	maxSize  = 16 << 20
	maxWork  = 256 << 20
)
