package expr

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/internal/spell"
)

// parser reads one expression by recursive descent, to a bounded depth.
type parser struct {
	text  string
	pos   int
	end   int // the end of the text, or of the longest expression
	depth int
	refs  []Reference
}

// operators are the binary operators by precedence, the loosest first. <= comes before <, and >= before >.
var operators = [][]string{
	{"||"},
	{"&&"},
	{"==", "!=", "<=", ">=", "<", ">"},
	{"+", "-"},
	{"*", "/", "%"},
}

func (p *parser) errorAt(offset int, format string, args ...any) *Error {
	return errorAt(p.text, offset, format, args...)
}

// peek returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	if p.pos < p.end {
		return p.text[p.pos]
	}
	return 0
}

func (p *parser) skipSpace() {
	for p.pos < p.end && isSpace(p.text[p.pos]) {
		p.pos++
	}
}

// accept skips white space, and then s if it is next.
func (p *parser) accept(s string) bool {
	p.skipSpace()
	if !strings.HasPrefix(p.text[p.pos:p.end], s) {
		return false
	}
	p.pos += len(s)
	return true
}

// expect is accept for a required s.
func (p *parser) expect(s string) error {
	if !p.accept(s) {
		return p.unexpected(s)
	}
	return nil
}

// nested reads a part of another part, one level deeper.
func (p *parser) nested(read func() (node, error)) (node, error) {
	if p.depth == maxDepth {
		return nil, p.errorAt(p.pos, "the expression nests more than %d deep", maxDepth)
	}
	p.depth++
	n, err := read()
	p.depth--
	return n, err
}

func (p *parser) expression() (node, error) {
	return p.nested(func() (node, error) { return p.binary(0) })
}

// binary reads a chain of the operators at level, or of tighter ones.
func (p *parser) binary(level int) (node, error) {
	if level == len(operators) {
		return p.unary()
	}
	first, err := p.binary(level + 1)
	if err != nil {
		return nil, err
	}
	var rest []operation
	for {
		at, op := p.operator(level)
		if op == "" {
			break
		}
		operand, err := p.binary(level + 1)
		if err != nil {
			return nil, err
		}
		rest = append(rest, operation{at, op, operand})
	}
	if rest == nil {
		return first, nil
	}
	return &chain{first, rest}, nil
}

func (p *parser) operator(level int) (at int, op string) {
	p.skipSpace()
	at = p.pos
	for _, op := range operators[level] {
		if p.accept(op) {
			return at, op
		}
	}
	return at, ""
}

func (p *parser) unary() (node, error) {
	p.skipSpace()
	at := p.pos
	switch c := p.peek(); c {
	case '!', '-', '+':
		p.pos++
		operand, err := p.nested(p.unary)
		if err != nil {
			return nil, err
		}
		return &unary{at, string(c), operand}, nil
	}
	return p.postfix()
}

// postfix reads a value with its keys and indexes.
func (p *parser) postfix() (node, error) {
	base, err := p.primary()
	if err != nil {
		return nil, err
	}
	n, path := base.(*name) // whether the path of the reference can still grow
	var links []link
	for {
		l, ok, err := p.link()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		links = append(links, l)
		path = path && l.index == nil
		if path {
			p.refs[n.ref].Path = append(p.refs[n.ref].Path, l.key)
		}
	}
	if links == nil {
		return base, nil
	}
	return &access{base, links}, nil
}

// link reads .key or [index], if one is next.
func (p *parser) link() (l link, ok bool, err error) {
	p.skipSpace()
	l.at = p.pos
	switch p.peek() {
	case '.':
		p.pos++
		p.skipSpace()
		if l.key = p.word(); l.key == "" {
			return l, false, p.unexpected("a name after the dot").
				withHint(`any other key is written ["key"], an index [0]`)
		}
	case '[':
		p.pos++
		index, err := p.expression()
		if err != nil {
			return l, false, err
		}
		if err := p.expect("]"); err != nil {
			return l, false, err
		}
		if c, constantKey := index.(*constant); constantKey && c.value.kind == String {
			l.key = c.value.str
		} else {
			l.index = index
		}
	case '(':
		return l, false, p.errorAt(p.pos, "this cannot be called").
			withHint("the functions are %s", strings.Join(functions, ", "))
	default:
		return l, false, nil
	}
	return l, true, nil
}

func (p *parser) primary() (node, error) {
	p.skipSpace()
	at := p.pos
	switch c := p.peek(); {
	case c == '(':
		p.pos++
		inner, err := p.expression()
		if err != nil {
			return nil, err
		}
		return inner, p.expect(")")
	case c == '[':
		return p.array()
	case c == '{':
		return p.object()
	case c == '"':
		return p.quoted()
	case c == '\'':
		return p.raw()
	case isDigit(c):
		return p.number()
	case isLetter(c):
		return p.named(at, p.word())
	default:
		return nil, p.unexpected("a value")
	}
}

// word reads a name, or returns "".
func (p *parser) word() string {
	start := p.pos
	for p.pos < p.end && (isLetter(p.text[p.pos]) || p.pos > start && isDigit(p.text[p.pos])) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// named reads a literal, a call or a name that begins with word.
func (p *parser) named(at int, word string) (node, error) {
	if v, ok := literals[word]; ok {
		return &constant{v}, nil
	}
	p.skipSpace()
	called := p.peek() == '('
	switch {
	case slices.Contains(functions, word) && called:
		return p.call(at, word)
	case slices.Contains(functions, word):
		return nil, p.errorAt(at, "%s is a function", word).withHint("call it: %s(value)", word)
	case called:
		err := p.errorAt(at, "there is no function %s", abbreviate(word))
		if near := spell.Nearest(word, functions); near != "" {
			return nil, err.withHint("did you mean %s?", near)
		}
		return nil, err.withHint("the functions are %s", strings.Join(functions, ", "))
	case slices.Contains(reserved, word):
		return nil, p.errorAt(at, "%s is a reserved word, not a name", word).withHint("for the text itself write %q", word)
	default:
		p.refs = append(p.refs, Reference{Path: []string{word}, Offset: at})
		return &name{at, word, len(p.refs) - 1}, nil
	}
}

func (p *parser) call(at int, function string) (node, error) {
	p.pos++ // the parenthesis
	if p.accept(")") {
		return nil, p.errorAt(at, "%s takes one value, not none", function)
	}
	argument, err := p.expression()
	if err != nil {
		return nil, err
	}
	if p.accept(",") {
		return nil, p.errorAt(at, "%s takes one value, not several", function)
	}
	return &call{at, function, argument}, p.expect(")")
}

// unexpected returns an error about the next word, where expected must be.
func (p *parser) unexpected(expected string) *Error {
	p.skipSpace()
	at, rest := p.pos, p.text[p.pos:p.end]
	if rest == "" {
		return p.errorAt(at, "expected %s, found the end of the expression", expected)
	}
	if c, size := utf8.DecodeRuneInString(rest); c == utf8.RuneError && size == 1 {
		return p.errorAt(at, "expected %s, found the byte 0x%02X", expected, rest[0])
	}
	found := p.word()
	if found == "" {
		c, _ := utf8.DecodeRuneInString(rest)
		found = string(c)
	}
	return p.errorAt(at, "expected %s, found %s", expected, quote(found)).withHint("%s", foreign[found])
}
