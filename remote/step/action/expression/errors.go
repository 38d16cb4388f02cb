package expression

import (
	"fmt"
	"unicode/utf16"
)

// mistake is a mistake in an expression, in the words of GitHub's runner.
type mistake string

func (m mistake) Error() string { return string(m) }

// mistakef returns a mistake that has no single place.
func mistakef(format string, args ...any) error { return mistake(fmt.Sprintf(format, args...)) }

// at returns a mistake at an offset of text. Its position counts from 1, and characters as GitHub's runner counts them.
func at(text string, offset int, format string, args ...any) error {
	position := 1 + len(utf16.Encode([]rune(text[:offset])))
	return mistakef("%s. Located at position %d within expression: %.400s", fmt.Sprintf(format, args...), position, text)
}
