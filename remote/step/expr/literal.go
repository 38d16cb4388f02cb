package expr

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	opening = "${{"
	closing = "}}"
	escaped = `\${{`
)

// raw reads a string in single quotes. Its only escapes are \\ and \'.
func (p *parser) raw() node {
	start := p.pos
	var b strings.Builder
	for p.pos++; p.pos < p.end; p.pos++ {
		c := p.text[p.pos]
		switch {
		case c == '\'':
			p.pos++
			return &constant{text(b.String())}
		case c == '\\' && p.pos+1 < p.end && (p.text[p.pos+1] == '\\' || p.text[p.pos+1] == '\''):
			p.pos++
			c = p.text[p.pos]
		}
		b.WriteByte(c)
	}
	panic(p.errorAt(start, "the string is not closed").withHint("write ' at its end"))
}

// quoted reads a string in double quotes, which may have escapes and expressions.
func (p *parser) quoted() node {
	start := p.pos
	m := mixer{}
	for p.pos++; p.pos < p.end; {
		rest := p.text[p.pos:p.end]
		switch {
		case rest[0] == '"':
			p.pos++
			return m.node(start)
		case strings.HasPrefix(rest, escaped):
			m.text.WriteString(opening)
			p.pos += len(escaped)
		case rest[0] == '\\':
			m.text.WriteString(p.escape())
		case strings.HasPrefix(rest, opening):
			p.pos += len(opening)
			m.add(p.expression())
			p.expect(closing)
		default:
			m.text.WriteByte(rest[0])
			p.pos++
		}
	}
	panic(p.errorAt(start, "the string is not closed").withHint(`write " at its end`))
}

// The escapes of one letter, and the character of each.
const (
	escapes  = `\"/abfnrtv`
	meanings = "\\\"/\a\b\f\n\r\t\v"
)

// escape reads an escape and returns its text.
func (p *parser) escape() string {
	start := p.pos
	if c, ok := p.unicodeEscape(); ok {
		if !utf16.IsSurrogate(c) {
			return string(c)
		}
		low, _ := p.unicodeEscape()
		if c = utf16.DecodeRune(c, low); c == utf8.RuneError {
			panic(p.errorAt(start, "this is half a character").
				withHint(`a character beyond \uFFFF is a pair of escapes, such as \uD83D\uDE00`))
		}
		return string(c)
	}
	if start+1 < p.end {
		if i := strings.IndexByte(escapes, p.text[start+1]); i >= 0 {
			p.pos += 2
			return meanings[i : i+1]
		}
	}
	panic(p.errorAt(start, "there is no such escape").withHint(`for a backslash write \\, or use single quotes`))
}

// unicodeEscape reads \uXXXX if that is next.
func (p *parser) unicodeEscape() (rune, bool) {
	rest := p.text[p.pos:p.end]
	if len(rest) < 6 || rest[:2] != `\u` {
		return 0, false
	}
	c, err := strconv.ParseUint(rest[2:6], 16, 16)
	if err != nil {
		return 0, false
	}
	p.pos += 6
	return rune(c), true
}

// mixer collects the parts of a text with expressions.
type mixer struct {
	text  strings.Builder // after the last part
	parts []node
	exprs int
}

func (m *mixer) flush() {
	if m.text.Len() > 0 {
		m.parts = append(m.parts, plain(m.text.String()))
		m.text.Reset()
	}
}

func (m *mixer) add(n node) {
	m.flush()
	m.parts = append(m.parts, n)
	m.exprs++
}

// node returns the collected text: a constant if it has no expression.
func (m *mixer) node(at int) node {
	if m.exprs == 0 {
		return &constant{text(m.text.String())}
	}
	m.flush()
	return &mixed{at, m.parts}
}
