package lang

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// Error is a mistake in a job or a step, with its place and, if possible, a remedy. It quotes keys and names, never
// values.
type Error = yamltree.Error

// maxQuoted bounds a foreign word in an error, in bytes.
const maxQuoted = 64

// letters may begin a name; digits may follow.
const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	digits  = "0123456789"
)

// Quote returns a foreign key or name for an error: a space and the word in quotes, or "" if it does not look like one.
func Quote(word string) string { return yamltree.Quote(word) }

// QuoteName is Quote for a word that can only be a name, such as the one of a job: it may have any characters, and is
// cut if it is long.
func QuoteName(name string) string { return fmt.Sprintf(" %.*q", maxQuoted, name) }

// maxNames bounds the names that an error lists.
const maxNames = 20

// QuoteNames returns the first 20 names in quotes, and says how many more there are.
func QuoteNames(names []string) string {
	more := ""
	if len(names) > maxNames {
		more = fmt.Sprintf(" and %d more", len(names)-maxNames)
		names = names[:maxNames]
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%.*q", maxQuoted, name)
	}
	return strings.Join(quoted, ", ") + more
}

// Suggest returns the end of an error about an unknown word: a question about the known word that is most similar, or
// else otherwise.
func Suggest(word string, known []string, otherwise string) string {
	return yamltree.Suggest(word, known, otherwise)
}
