package expr

import "strings"

// Expr is an expression. It is immutable.
type Expr struct {
	text string
	root node
	refs []Reference
}

// Parse reads a single expression, without ${{ and }}. The error is an [*Error].
func Parse(text string) (_ *Expr, err error) {
	if len(text) > maxExpr {
		return nil, errorAt(text, 0, "the expression has more than 64 KiB")
	}
	defer catch(&err)
	p := &parser{text: text, end: len(text)}
	root := p.expression()
	if p.skipSpace(); p.pos < p.end {
		panic(p.unexpected("the end"))
	}
	return &Expr{text, root, p.refs}, nil
}

// References returns the uses of names of the scope, in the order of the text. The slice must not be changed.
func (e *Expr) References() []Reference { return e.refs }

// Eval computes the value. The error is an [*Error].
func (e *Expr) Eval(scope Scope) (_ Value, err error) {
	defer catch(&err)
	return e.root.eval(&run{text: e.text, scope: scope}), nil
}

// Template is a text with any number of expressions. It is immutable.
type Template struct {
	text string
	root node // a constant, or a mixed
	// lone is the expression if the text is a single one: its value keeps its type. A line break after it is ignored,
	// because YAML leaves one at the end of a block; but if the value is a string, it stays.
	lone node
	refs []Reference
}

// ParseTemplate reads a text with any number of ${{ expressions }}. \${{ is the escape of ${{. All other text stays
// unchanged, including $, }} and backslashes. The error is an [*Error].
func ParseTemplate(text string) (_ *Template, err error) {
	if len(text) > maxSize {
		return nil, errorAt(text, 0, "the text has more than 16 MiB")
	}
	m := mixer{}
	p := &parser{text: text}
	at := 0 // the last ${{
	defer func() {
		switch {
		case err == nil:
		case !strings.Contains(text[at+len(opening):], closing):
			err = p.errorAt(at, "the expression %s is not closed", opening).
				withHint("write %s at its end, or %s for the text itself", closing, escaped)
		case p.pos+len(closing) > p.end && p.end < len(text):
			err = p.errorAt(at, "the expression has more than 64 KiB")
		}
	}()
	defer catch(&err)
	for {
		before, _, found := strings.Cut(text[p.pos:], opening)
		if !found {
			m.text.WriteString(before)
			t := &Template{text: text, root: m.node(0), refs: p.refs}
			if m.exprs == 1 && (len(m.parts) == 1 || len(m.parts) == 2 && m.parts[1] == plain("\n")) {
				t.lone = m.parts[0]
			}
			return t, nil
		}
		at = p.pos + len(before)
		p.pos = at + len(opening)
		if plain, isEscaped := strings.CutSuffix(before, `\`); isEscaped {
			m.text.WriteString(plain + opening)
			continue
		}
		m.text.WriteString(before)
		p.end = min(len(text), p.pos+maxExpr)
		m.add(p.expression())
		p.expect(closing)
	}
}

// References returns the uses of names of the scope, in the order of the text. The slice must not be changed.
func (t *Template) References() []Reference { return t.refs }

// Eval computes the value of a lone expression, or the string of any other text. The error is an [*Error].
func (t *Template) Eval(scope Scope) (_ Value, err error) {
	defer catch(&err)
	r := &run{text: t.text, scope: scope}
	if t.lone == nil {
		return t.root.eval(r), nil
	}
	v := t.lone.eval(r)
	if v.kind == String {
		v = r.join(0, append([]node{&constant{v}}, t.root.(*mixed).parts[1:]...))
	}
	return v, nil
}
