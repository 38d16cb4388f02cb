package expression

import "fmt"

// mistake is a mistake in an expression, in the words of GitHub's runner.
type mistake string

func (m mistake) Error() string { return string(m) }

// mistakef returns a mistake that has no single place.
func mistakef(format string, args ...any) error { return mistake(fmt.Sprintf(format, args...)) }

// at returns a mistake at an offset of text.
func at(text string, offset int, format string, args ...any) error {
	return mistakef("%s. Located at position %d within expression: %.400s", fmt.Sprintf(format, args...), offset+1, text)
}
