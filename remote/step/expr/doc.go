// Package expr is the language of expressions between ${{ and }}: it parses expressions, and texts that contain some,
// and computes their values.
//
// [ParseTemplate] parses a text with any number of expressions, [Parse] a single expression without its brackets. Both
// report every syntax error. References lists the names that an expression reads, so that a job can be checked before
// it runs. Eval computes a [Value] from a [Scope], the names that the caller defines.
//
//	${{ steps.build.outputs.items[0] }}          access, by name and by index
//	${{ vars.REGISTRY + "/" + inputs.image }}    + - * / %, on numbers; + on strings as well
//	${{ steps.scan.outputs.high < 5 }}           == != < <= > >=
//	${{ inputs.tag || "latest" }}                && || ! take any value; && and || give one of their operands
//	${{ "v${{ str(1 + 2) }}\n" }}                a string with escapes and expressions
//	${{ 'C:\dir ${{ as it is }}' }}              a raw string: only \\ and \' are escapes
//	${{ [1, {name: "x", (inputs.key): true}] }}  arrays and objects
//	\${{                                         the text ${{ itself
//
// The functions are str(x), num(x) and bool(x). Only they convert: "a" + 1 is an error, 1 == "1" is false, and 1 < "2"
// is an error. A missing name or key is an error, never an empty text. A text that is a single expression keeps the
// type of its value; other texts are strings, see [Value.Text].
//
// A [Value] can be sensitive. A value that is computed from it is sensitive too, by any operation. That includes the
// operand of && and || that only decides. A Value also remembers whether a source was declared sensitive
// ([Value.Declared]), or only a masked variable made it so. Errors quote names that stand in an expression, never
// values.
//
// Everything is bounded for any input: an expression has at most 64 KiB and nests at most 100 deep, a value has at most
// 16 MiB and 100 levels, and an evaluation reads and writes at most 256 MiB.
//
// The package does no I/O and owns nothing. All its types are immutable and safe for concurrent use.
package expr

// The limits, see the package's comment.
const (
	maxExpr  = 64 << 10
	maxDepth = 100
	maxSize  = 16 << 20
	maxWork  = 256 << 20
)
