package lang

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// place is the origin of a part of a job: a node of a text, or a field of a request.
type place struct {
	text *Source
	node *yaml.Node // nil in a request
	path string     // in a request
}

func (p place) errorf(format string, args ...any) *Error {
	if p.node == nil {
		return &Error{Where: p.path, Message: fmt.Sprintf(format, args...)}
	}
	return p.text.Errorf(p.node, format, args...)
}

// errorIn returns an error about the byte at offset of the value that was read here.
func (p place) errorIn(value string, offset int, format string, args ...any) *Error {
	err := p.errorf(format, args...)
	if p.node == nil || p.node.Kind != yaml.ScalarNode {
		return err
	}
	if line, column := p.find(value, offset); line > 0 {
		err.Line, err.Column = line, column
		err.Where = fmt.Sprintf("%s:%d:%d", p.text.Name, line, column)
	}
	return err
}

// find returns the place in the text of the byte at offset of the value. It returns 0 if it is unknown.
func (p place) find(value string, offset int) (line, column int) {
	mark, _, _ := strings.Cut(value[offset:], "\n")
	mark = mark[:min(len(mark), maxMark)]
	line = p.node.Line
	// from is the first byte of the line that can be the mark. A block of text (script: |) begins on the next line and is
	// indented, so the mark is at least as far right as in the value.
	from := 0
	switch {
	case p.node.Style&yaml.LiteralStyle != 0:
		line += 1 + strings.Count(value[:offset], "\n")
		from = offset - 1 - strings.LastIndexByte(value[:offset], '\n')
	case p.node.Style&yaml.FoldedStyle != 0 || strings.Contains(value[:offset], "\n"):
		return 0, 0
	default:
		source := p.text.Line(line)
		for range p.node.Column - 1 {
			_, size := utf8.DecodeRuneInString(source[from:])
			from += size
		}
		from += offset
	}
	source := p.text.Line(line)
	if from > len(source) {
		return 0, 0
	}
	at := strings.Index(source[from:], mark)
	if at < 0 || mark == "" {
		return 0, 0
	}
	return line, 1 + utf8.RuneCountInString(source[:from+at])
}

// maxMark bounds the part of a value that is searched for in its text, in bytes.
const maxMark = 16
