package expr

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// parser reads one expression by recursive descent, to a bounded depth. It ends with an error by a panic, see catch.
type parser struct {
	text  string
	pos   int
	end   int // the end of the text, or where the longest expression would end
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
	p.pos = p.end - len(strings.TrimLeft(p.text[p.pos:p.end], " \t\n\r"))
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

// expect is accept, but it is an error if s is missing.
func (p *parser) expect(s string) {
	if !p.accept(s) {
		panic(p.unexpected(s))
	}
}

// nested reads a part of another part, one level deeper.
func (p *parser) nested(read func() node) node {
	if p.depth == maxDepth {
		panic(p.errorAt(p.pos, "the expression nests more than %d deep", maxDepth))
	}
	p.depth++
	n := read()
	p.depth--
	return n
}

func (p *parser) expression() node {
	return p.nested(func() node { return p.binary(0) })
}

// binary reads a chain of the operators at level, or of those that bind tighter.
func (p *parser) binary(level int) node {
	if level == len(operators) {
		return p.unary()
	}
	first := p.binary(level + 1)
	var rest []operation
	for at, op := p.operator(level); op != ""; at, op = p.operator(level) {
		rest = append(rest, operation{at, op, p.binary(level + 1)})
	}
	if rest == nil {
		return first
	}
	return &chain{first, rest}
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

func (p *parser) unary() node {
	p.skipSpace()
	at := p.pos
	switch c := p.peek(); c {
	case '!', '-', '+':
		p.pos++
		return &unary{operation{at, string(c), p.nested(p.unary)}}
	}
	return p.postfix()
}

// postfix reads a value with its keys and indexes.
func (p *parser) postfix() node {
	base := p.primary()
	n, path := base.(*name) // path says that the path of the reference can still grow
	var links []link
	for l, ok := p.link(); ok; l, ok = p.link() {
		links = append(links, l)
		path = path && l.index == nil
		if path {
			p.refs[n.ref].Path = append(p.refs[n.ref].Path, l.key)
		}
	}
	if links == nil {
		return base
	}
	return &access{base, links}
}

// link reads .key or [index], if one is next.
func (p *parser) link() (l link, ok bool) {
	p.skipSpace()
	l.at = p.pos
	switch p.peek() {
	case '.':
		p.pos++
		p.skipSpace()
		if l.key = p.word(); l.key == "" {
			panic(p.unexpected("a name after the dot").withHint(`any other key is written ["key"], an index [0]`))
		}
	case '[':
		p.pos++
		index := p.expression()
		p.expect("]")
		if c, constantKey := index.(*constant); constantKey && c.value.kind == String {
			l.key = c.value.str
		} else {
			l.index = index
		}
	case '(':
		panic(p.errorAt(p.pos, "this cannot be called").withHint("%s", functionsHint))
	default:
		return l, false
	}
	return l, true
}

func (p *parser) primary() node {
	p.skipSpace()
	at := p.pos
	switch c := p.peek(); {
	case c == '(':
		p.pos++
		inner := p.expression()
		p.expect(")")
		return inner
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
		panic(p.unexpected("a value"))
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
func (p *parser) named(at int, word string) node {
	if v, ok := literals[word]; ok {
		return &constant{v}
	}
	p.skipSpace()
	called := p.peek() == '('
	switch {
	case slices.Contains(functions, word) && called:
		return p.call(at, word)
	case slices.Contains(functions, word):
		panic(p.errorAt(at, "%s is a function", word).withHint("call it: %s(value)", word))
	case called:
		panic(p.errorAt(at, "there is no function %s", Abbreviate(word)).withNearest(word, functions, functionsHint))
	case slices.Contains(reserved, word):
		panic(p.errorAt(at, "%s is a reserved word, not a name", word).withHint("for the text itself write %q", word))
	default:
		p.refs = append(p.refs, Reference{Path: []string{word}, Offset: at})
		return &name{at, word, len(p.refs) - 1}
	}
}

func (p *parser) call(at int, function string) node {
	p.pos++ // the parenthesis
	if p.accept(")") {
		panic(p.errorAt(at, "%s takes one value, not none", function))
	}
	argument := p.expression()
	if p.accept(",") {
		panic(p.errorAt(at, "%s takes one value, not several", function))
	}
	p.expect(")")
	return &call{at, function, argument}
}

// symbols are the symbols of several characters.
var symbols = []string{opening, closing, "||", "&&", "==", "!=", "<=", ">="}

// token returns the next token, whole, for an error. There must be one.
func (p *parser) token() string {
	rest := p.text[p.pos:p.end]
	switch c := rest[0]; {
	case isLetter(c), isDigit(c):
		end := len(numberForm().FindString(rest))
		for end < len(rest) && (isLetter(rest[end]) || isDigit(rest[end])) {
			end++
		}
		return rest[:end]
	case c == '"', c == '\'':
		if end := closingQuote(rest); end > 0 {
			return rest[:end]
		}
	}
	for _, s := range symbols {
		if strings.HasPrefix(rest, s) {
			return s
		}
	}
	_, size := utf8.DecodeRuneInString(rest)
	return rest[:size]
}

// closingQuote returns the end of the string at the beginning of text, or 0 if it is not closed.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case text[0]:
			return i + 1
		case '\\':
			i++
		}
	}
	return 0
}

// unexpected returns an error about the next token, in a place that needs expected.
func (p *parser) unexpected(expected string) *Error {
	p.skipSpace()
	at, rest := p.pos, p.text[p.pos:p.end]
	if rest == "" {
		return p.errorAt(at, "expected %s, found the end of the expression", expected)
	}
	if c, size := utf8.DecodeRuneInString(rest); c == utf8.RuneError && size == 1 {
		return p.errorAt(at, "expected %s, found the byte 0x%02X", expected, rest[0])
	}
	found := p.token()
	p.pos += len(found)
	return p.errorAt(at, "expected %s, found %s", expected, quote(found)).withHint("%s", foreign[found])
}
