package expression

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind int

const (
	tokenEnd      kind = iota
	tokenSymbol        // an operator or a bracket; see text
	tokenLiteral       // see value
	tokenName          // a context
	tokenFunction      // the name of a function; a parenthesis follows
	tokenProperty      // the name after a dot
)

// token is a part of an expression.
type token struct {
	kind   kind
	text   string
	offset int
	value  Value // of a literal
}

// lexer splits an expression into tokens.
type lexer struct {
	text string
	at   int
	last token
}

// boundaries end a word or a number.
const boundaries = "([)],.!><=&|"

func isBoundary(c rune) bool { return strings.ContainsRune(boundaries, c) || unicode.IsSpace(c) }

// next returns the next token. At the end it returns tokenEnd each time.
func (l *lexer) next() (token, error) {
	for l.at < len(l.text) {
		c, size := utf8.DecodeRuneInString(l.text[l.at:])
		if !unicode.IsSpace(c) {
			break
		}
		l.at += size
	}
	t, err := l.read()
	l.last = t
	return t, err
}

func (l *lexer) read() (token, error) {
	start := l.at
	if start == len(l.text) {
		return token{kind: tokenEnd, offset: start}, nil
	}
	switch c := l.text[start]; {
	case strings.IndexByte("()[],*", c) >= 0:
		return l.symbol(1), nil
	case c == '\'':
		return l.string()
	case strings.IndexByte("!<>=&|", c) >= 0:
		return l.operator()
	case c == '.' && !l.mayBegin():
		return l.symbol(1), nil
	case c == '.' || c == '-' || c == '+' || c >= '0' && c <= '9':
		return l.number()
	default:
		return l.word()
	}
}

// mayBegin reports whether an operand may begin after the last token. In such a place a dot begins a number. As for
// GitHub, that is also after a literal and after another dot, where the number is a mistake.
func (l *lexer) mayBegin() bool {
	switch l.last.kind {
	case tokenSymbol:
		return l.last.text != ")" && l.last.text != "]" && l.last.text != "*"
	case tokenName, tokenFunction, tokenProperty:
		return false
	default:
		return true
	}
}

func (l *lexer) symbol(size int) token {
	t := token{kind: tokenSymbol, text: l.text[l.at : l.at+size], offset: l.at}
	l.at += size
	return t
}

// operator reads an operator of one or two characters.
func (l *lexer) operator() (token, error) {
	if l.at+2 <= len(l.text) {
		switch l.text[l.at : l.at+2] {
		case "!=", ">=", "<=", "==", "&&", "||":
			return l.symbol(2), nil
		}
	}
	switch l.text[l.at] {
	case '!', '<', '>':
		return l.symbol(1), nil
	}
	start := l.at
	l.at++
	l.skip("")
	return token{}, l.unexpected(start)
}

// string reads a text in quotes. Two quotes in it stand for one.
func (l *lexer) string() (token, error) {
	start := l.at
	var out strings.Builder
	for rest := l.text[start+1:]; ; {
		i := strings.IndexByte(rest, '\'')
		if i < 0 {
			l.at = len(l.text)
			return token{}, l.unexpected(start)
		}
		out.WriteString(rest[:i])
		rest = rest[i+1:]
		if !strings.HasPrefix(rest, "'") {
			l.at = len(l.text) - len(rest)
			break
		}
		out.WriteByte('\'')
		rest = rest[1:]
	}
	return token{kind: tokenLiteral, text: l.text[start:l.at], offset: start, value: String(out.String())}, nil
}

// skip goes to the next boundary that is not in also.
func (l *lexer) skip(also string) {
	for l.at < len(l.text) {
		c, size := utf8.DecodeRuneInString(l.text[l.at:])
		if isBoundary(c) && !strings.ContainsRune(also, c) {
			return
		}
		l.at += size
	}
}

func (l *lexer) number() (token, error) {
	start := l.at
	l.at++
	l.skip(".")
	text := l.text[start:l.at]
	f := parseNumber(text)
	if math.IsNaN(f) {
		return token{}, l.unexpected(start)
	}
	return token{kind: tokenLiteral, text: text, offset: start, value: Number(f)}, nil
}

// word reads a name, or a literal that is a word.
func (l *lexer) word() (token, error) {
	start := l.at
	_, size := utf8.DecodeRuneInString(l.text[start:])
	l.at += size
	l.skip("")
	t := token{kind: tokenName, text: l.text[start:l.at], offset: start}
	if !isWord(t.text) {
		return token{}, l.unexpected(start)
	}
	if l.last.kind == tokenSymbol && l.last.text == "." {
		t.kind = tokenProperty
		return t, nil
	}
	if v, ok := words[t.text]; ok {
		t.kind, t.value = tokenLiteral, v
		return t, nil
	}
	if strings.HasPrefix(strings.TrimLeftFunc(l.text[l.at:], unicode.IsSpace), "(") {
		t.kind = tokenFunction
	}
	return t, nil
}

var words = map[string]Value{
	"null": {}, "true": Boolean(true), "false": Boolean(false), "NaN": Number(math.NaN()), "Infinity": Number(math.Inf(1)),
}

// isWord reports whether text can be the name of a context, a function or a property.
func isWord(text string) bool {
	for i, c := range text {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return text != ""
}

func (l *lexer) unexpected(start int) error {
	return at(l.text, start, "Unexpected symbol: '%.160s'", l.text[start:l.at])
}
