package lang

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
)

// Error is a mistake in a job or a step, with its place and, if possible, a remedy. It quotes keys and names, never
// values.
type Error struct {
	// Where is the place: "file:line:column" in a text, "steps[2].env" in a request.
	Where string
	// Line and Column count from 1, in a text; the column counts characters. In a request they are 0.
	Line, Column int
	// Message is the mistake, without the place.
	Message string
}

func (e *Error) Error() string { return e.Where + ": " + e.Message }

// mistake keeps the first mistake.
type mistake struct{ err error }

// fail keeps err, if it is the first one. err may be nil.
func (m *mistake) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// maxQuoted bounds a foreign word in an error, in bytes.
const maxQuoted = 64

// letters may begin a name; digits may follow.
const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	digits  = "0123456789"
)

// Quote returns a foreign key or name for an error: a space and the word in quotes. It returns "" if the word does not
// look like a name: a line of a script in the place of a key may contain a secret. A name of several words has no :
// and no /.
func Quote(word string) string {
	more := " "
	if !strings.Contains(word, " ") {
		more = ":/"
	}
	if word == "" || len(word) > maxQuoted || strings.Trim(word, letters+digits+"-."+more) != "" {
		return ""
	}
	return fmt.Sprintf(" %q", word)
}

// QuoteName is Quote for a word that can only be a name, such as the one of a job: it may have any characters, and is
// cut if it is long.
func QuoteName(name string) string { return fmt.Sprintf(" %.*q", maxQuoted, name) }

// Suggest returns the end of an error about an unknown word: a question about the known word that is most similar, or
// else otherwise.
func Suggest(word string, known []string, otherwise string) string {
	if near := spell.Nearest(word, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return otherwise
}
