package lang

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
)

// Error says what is wrong with a job or a step, where, and where possible what to write instead. It quotes
// keys and names, never values.
type Error struct {
	// Where is the place: "file:line:column" in a text, "steps[2].env" in a request.
	Where string
	// Line and Column count from 1, in a text; the column counts characters. Else they are 0.
	Line, Column int
	// Message says what is wrong.
	Message string

	semantic bool // see place
}

func (e *Error) Error() string { return e.Where + ": " + e.Message }

// maxQuoted is the longest foreign word an error repeats, in bytes.
const maxQuoted = 64

// quote returns a key or name for use in an error, or "" where repeating it would say too much: a line
// of a script that slipped to where a key is expected may hold a secret.
func quote(word string) string {
	if word == "" || len(word) > maxQuoted {
		return ""
	}
	for _, c := range word {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("_-. ", c):
		default:
			return ""
		}
	}
	return fmt.Sprintf(" %q", word)
}

// nearest returns the word of words that key was most likely meant to be, or "".
func nearest(key string, words []string) string { return spell.Nearest(key, words) }
