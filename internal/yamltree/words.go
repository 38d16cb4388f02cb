package yamltree

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/spell"
)

const (
	// maxQuoted bounds a foreign word in an error, in bytes.
	maxQuoted = 64
	// maxListed bounds the known keys that an error about an unknown one lists.
	maxListed = 20
	// nameBytes are the bytes of a word that looks like a name.
	nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789-."
)

// Quote returns a foreign key or name for an error: a space and the word in quotes. It returns "" if the word does not
// look like a name: a line of a script in the place of a key may contain a secret. A name of several words has no :
// and no /.
func Quote(word string) string {
	more := " "
	if !strings.Contains(word, " ") {
		more = ":/"
	}
	if word == "" || len(word) > maxQuoted || strings.Trim(word, nameBytes+more) != "" {
		return ""
	}
	return fmt.Sprintf(" %q", word)
}

// Suggest returns the end of an error about an unknown word: a question about the known word that is most similar, or
// else otherwise.
func Suggest(word string, known []string, otherwise string) string {
	if near := spell.Nearest(word, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return otherwise
}

// Unknown returns the message about a key that is not in known, the keys of label. The hint is for a key that is like
// no other. If it is empty, a list of the keys takes its place.
func Unknown(key, label string, known []string, hint string) string {
	switch {
	case hint != "":
	case len(known) > maxListed:
		hint = "; " + label + " has no such key"
	default:
		hint = "; " + label + " has " + strings.Join(known, ", ")
	}
	return "unknown key" + Quote(key) + Suggest(key, known, hint)
}

// Twice returns the message about a key that its mapping has had before.
func Twice(key string) string { return "the key" + Quote(key) + " is given twice" }

// IsNull reports whether n is missing or null.
func IsNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// Describe returns the type of n for errors, without its value.
func Describe(n *yaml.Node) string {
	switch n.Kind { //nolint:exhaustive // the others are scalars
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	switch n.ShortTag() {
	case "!!null":
		return `nothing; for an empty text write ""`
	case "!!int", "!!float":
		return "a number; put it in quotes"
	case "!!bool":
		return "true or false; put it in quotes"
	case "!!timestamp":
		return "a date; put it in quotes"
	case "!!str":
		return "a text"
	default:
		return "something else; put it in quotes"
	}
}
