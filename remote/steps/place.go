package steps

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// place is where something of a job was read: a node of a text, or a field of a request.
type place struct {
	text *text
	node *yaml.Node // nil in a request
	path string     // in a request
}

// text is a YAML text and the name errors give it.
type text struct {
	name string
	data string
}

func (t *text) errorAt(line, column int, format string, args ...any) *Error {
	return &Error{
		Where:   fmt.Sprintf("%s:%d:%d", t.name, line, column),
		Line:    line,
		Column:  column,
		Message: fmt.Sprintf(format, args...),
	}
}

// errorAtByte is errorAt for the byte at offset.
func (t *text) errorAtByte(offset int, format string, args ...any) *Error {
	before := t.data[:offset]
	start := strings.LastIndexByte(before, '\n') + 1
	return t.errorAt(1+strings.Count(before, "\n"), 1+utf8.RuneCountInString(before[start:]), format, args...)
}

// line returns line number n, which counts from 1, or "".
func (t *text) line(n int) string {
	rest := t.data
	for ; n > 1; n-- {
		_, after, found := strings.Cut(rest, "\n")
		if !found {
			return ""
		}
		rest = after
	}
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

func (p place) errorf(format string, args ...any) *Error {
	if p.node == nil {
		return &Error{Where: p.path, Message: fmt.Sprintf(format, args...)}
	}
	return p.text.errorAt(p.node.Line, p.node.Column, format, args...)
}

// errorIn is errorf for what begins with mark at offset of the value read here. In a block of text
// (script: |) that is lines below where the block begins.
func (p place) errorIn(value string, offset int, mark, format string, args ...any) *Error {
	if p.node == nil || p.node.Style&yaml.LiteralStyle == 0 {
		return p.errorf(format, args...)
	}
	line := p.node.Line + 1 + strings.Count(value[:offset], "\n")
	source := p.text.line(line)
	// The block is indented: what stands before the mark in the value stands further right in the text.
	inLine := offset - 1 - strings.LastIndexByte(value[:offset], '\n')
	if inLine > len(source) {
		return p.errorf(format, args...)
	}
	at := strings.Index(source[inLine:], mark)
	if at < 0 {
		return p.errorf(format, args...)
	}
	return p.text.errorAt(line, 1+utf8.RuneCountInString(source[:inLine+at]), format, args...)
}
