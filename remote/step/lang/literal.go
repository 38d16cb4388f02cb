package lang

import "strings"

const (
	exprOpen    = "${{"
	exprEscaped = `\${{`
)

// hasExpression reports whether text has an expression or an escape of one.
func hasExpression(text string) bool { return strings.Contains(text, exprOpen) }

// Literal returns the text of a template without expressions: it resolves the escape \${{ and changes no other byte. It
// returns false if the template has an expression, valid or not. The template may have any length.
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

// Escape returns a template whose value is text. Expressions of other languages in text would look like ours.
func Escape(text string) string { return strings.ReplaceAll(text, exprOpen, exprEscaped) }
