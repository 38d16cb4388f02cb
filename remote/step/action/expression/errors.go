package expression

import "fmt"

// Error is a mistake in an expression.
type Error struct {
	// Message is the text of GitHub's runner for this mistake.
	Message string
	// Offset is the place of the mistake, in bytes from the beginning of the parsed text. It is negative if the mistake
	// has no single place.
	Offset int
}

func (e *Error) Error() string { return e.Message }

// at returns an error at an offset of text.
func at(text string, offset int, format string, args ...any) error {
	return &Error{
		Message: fmt.Sprintf("%s. Located at position %d within expression: %.400s",
			fmt.Sprintf(format, args...), offset+1, text),
		Offset: offset,
	}
}

// nowhere returns an error about a value.
func nowhere(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Offset: -1}
}
