package expr

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/internal/spell"
)

// Error is a mistake in an expression, or a failure of its evaluation, with its place. It quotes words of the source,
// never values.
type Error struct {
	// Offset is the place in the parsed text, in bytes.
	Offset int
	// Line and Column are the same place. Both count from 1; the column counts characters.
	Line, Column int
	// Message is the text without place and hint.
	Message string
	// Hint is a remedy, or empty.
	Hint string
}

// Error implements error.
func (e *Error) Error() string {
	s := fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// withHint sets the hint and returns the error.
func (e *Error) withHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// withNearest sets the hint to the known word that is most similar to word, or else to otherwise.
func (e *Error) withNearest(word string, known []string, otherwise string) *Error {
	e.Hint = otherwise
	if near := spell.Nearest(word, known); near != "" {
		e.Hint = "did you mean " + near + "?"
	}
	return e
}

// catch sets err to the Error of a panic. A parser or an evaluation panics to end from any depth.
func catch(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		*err = e
	default:
		panic(e)
	}
}

// errorAt returns an Error for the byte at offset of text.
func errorAt(text string, offset int, format string, args ...any) *Error {
	before := text[:offset]
	start := strings.LastIndexByte(before, '\n') + 1
	return &Error{
		Offset:  offset,
		Line:    1 + strings.Count(before, "\n"),
		Column:  1 + utf8.RuneCountInString(before[start:]),
		Message: fmt.Sprintf(format, args...),
	}
}

// maxQuoted bounds a word in an error, in bytes.
const maxQuoted = 64

// Abbreviate returns a word of the source for an error.
func Abbreviate(word string) string {
	if len(word) <= maxQuoted {
		return word
	}
	return strings.ToValidUTF8(word[:maxQuoted], "") + "..."
}

// quote is Abbreviate for a word that may have any character.
func quote(word string) string { return strconv.Quote(Abbreviate(word)) }
