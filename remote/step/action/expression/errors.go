package expression

import "fmt"

// Error is a mistake in an expression.
type Error struct {
	// Message is in the words of GitHub's runner.
	Message string
	// Offset is where the mistake is, in bytes from the beginning of the text that was parsed; negative if it is in no
	// single place.
	Offset int
}

func (e *Error) Error() string { return e.Message }

// at is a mistake at an offset of text.
func at(text string, offset int, format string, args ...any) error {
	return &Error{
		Message: fmt.Sprintf("%s. Located at position %d within expression: %.400s",
			fmt.Sprintf(format, args...), offset+1, text),
		Offset: offset,
	}
}

// nowhere is a mistake of a value.
func nowhere(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Offset: -1}
}
