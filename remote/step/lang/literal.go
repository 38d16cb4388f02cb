package lang

import "strings"

const (
	exprOpen    = "${{"
	exprEscaped = `\${{`
)

// hasExpression reports whether text may be something else than itself.
func hasExpression(text string) bool { return strings.Contains(text, exprOpen) }

// Literal returns the text a template without expressions stands for: \${{ is the escape of ${{, and no
// other byte changes. It is false if an expression is in it, which may be wrong. It has no limit of
// length.
func Literal(template string) (string, bool) {
	var out strings.Builder
	rest := template
	for {
		i := strings.Index(rest, exprOpen)
		if i < 0 {
			break
		}
		if i == 0 || rest[i-1] != '\\' {
			return "", false
		}
		out.WriteString(rest[:i-1])
		out.WriteString(exprOpen)
		rest = rest[i+len(exprOpen):]
	}
	if out.Len() == 0 {
		return rest, true
	}
	out.WriteString(rest)
	return out.String(), true
}

// escape returns a template that stands for text, whatever that holds.
func escape(text string) string { return strings.ReplaceAll(text, exprOpen, exprEscaped) }
