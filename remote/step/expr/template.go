package expr

import "strings"

// Expr is an expression. It is immutable.
type Expr struct {
	text string
	root node
	refs []Reference
}

// Parse reads a single expression, without ${{ and }}. The error is an [*Error].
func Parse(text string) (*Expr, error) {
	if len(text) > maxExpr {
		return nil, errorAt(text, 0, "the expression has more than 64 KiB")
	}
	p := &parser{text: text, end: len(text)}
	root, err := p.expression()
	if err != nil {
		return nil, err
	}
	if p.skipSpace(); p.pos < p.end {
		return nil, p.unexpected("the end")
	}
	return &Expr{text, root, p.refs}, nil
}

// References returns the uses of names of the scope, in the order of the text. The slice must not be changed.
func (e *Expr) References() []Reference { return e.refs }

// Eval computes the value. The error is an [*Error].
func (e *Expr) Eval(scope Scope) (Value, error) {
	r := &run{text: e.text, scope: scope}
	return e.root.eval(r)
}

// Template is a text with any number of expressions. It is immutable.
type Template struct {
	text  string
	parts []node // plain text and expressions, as they follow each other
	exprs int
	refs  []Reference
}

// ParseTemplate reads a text with any number of ${{ expressions }}. \${{ is the escape of ${{. All other text stays as
// it is, including $, }} and backslashes. The error is an [*Error].
func ParseTemplate(text string) (*Template, error) {
	if len(text) > maxSize {
		return nil, errorAt(text, 0, "the text has more than 16 MiB")
	}
	t := &Template{text: text}
	m := mixer{}
	pos := 0
	for {
		i := strings.Index(text[pos:], opening)
		if i < 0 {
			break
		}
		at := pos + i
		if i > 0 && text[at-1] == '\\' {
			m.text.WriteString(text[pos : at-1])
			m.text.WriteString(opening)
			pos = at + len(opening)
			continue
		}
		m.text.WriteString(text[pos:at])
		n, end, err := t.expression(at)
		if err != nil {
			return nil, err
		}
		m.add(n)
		pos = end
	}
	m.text.WriteString(text[pos:])
	m.flush()
	t.parts, t.exprs = m.parts, m.exprs
	return t, nil
}

// expression reads the expression whose ${{ is at offset at, and returns the offset after its }}.
func (t *Template) expression(at int) (n node, end int, err error) {
	start := at + len(opening)
	p := &parser{text: t.text, pos: start, end: min(len(t.text), start+maxExpr), refs: t.refs}
	n, err = p.expression()
	if err == nil {
		err = p.expect(closing)
	}
	t.refs = p.refs
	switch {
	case err == nil:
		return n, p.pos, nil
	case !strings.Contains(t.text[start:], closing):
		err = p.errorAt(at, "the expression %s is not closed", opening).
			withHint("write %s at its end, or %s for the text itself", closing, escaped)
	case p.pos+len(closing) > p.end && p.end < len(t.text):
		err = p.errorAt(at, "the expression has more than 64 KiB")
	}
	return nil, 0, err
}

// Literal returns the text, and false if it has an expression.
func (t *Template) Literal() (string, bool) {
	switch {
	case t.exprs > 0:
		return "", false
	case len(t.parts) == 0:
		return "", true
	default:
		return string(t.parts[0].(plain)), true
	}
}

// Lone reports whether the text is a single expression, so that its value keeps its type. A line break after it, which
// YAML leaves at the end of a block, is ignored, unless the value is a string.
func (t *Template) Lone() bool {
	switch {
	case t.exprs != 1 || len(t.parts) > 2:
		return false
	case len(t.parts) == 1:
		return true
	default:
		return t.parts[1] == plain("\n")
	}
}

// References returns the uses of names of the scope, in the order of the text. The slice must not be changed.
func (t *Template) References() []Reference { return t.refs }

// Eval computes the value of a lone expression, or the string of any other text. The error is an [*Error].
func (t *Template) Eval(scope Scope) (Value, error) {
	r := &run{text: t.text, scope: scope}
	if !t.Lone() {
		return r.join(0, t.parts)
	}
	v, err := t.parts[0].eval(r)
	if err != nil || v.kind != String || len(t.parts) == 1 {
		return v, err
	}
	return r.join(0, []node{&constant{v}, t.parts[1]})
}
