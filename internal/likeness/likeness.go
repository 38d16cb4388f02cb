// Package likeness finds out whether texts about several builds tell of the same cause: [Of] removes the parts in which
// such texts differ.
package likeness

import (
	"regexp"
	"strings"
)

// mark stands for a part that was removed.
const mark = "…"

// words matches the parts of a text that may have to be removed. Exit codes and the like come first: they stay.
var words = regexp.MustCompile(`(?:status|code|HTTP)[ :=]+[0-9]+|[0-9]+(?:\.[0-9]+)?(?:ns|µs|ms|s|m|h)+\b|` +
	`\btmp\.[0-9A-Za-z]+|[0-9A-Za-z]+`)

// Of returns text without the numbers of processes, files and ports, and without times, identifiers and random names.
// own are the names of the build and of its VM; they are removed, too. Texts with the same result are about the same
// cause.
func Of(text string, own ...string) string {
	for _, name := range own {
		if name != "" {
			text = strings.ReplaceAll(text, name, mark)
		}
	}
	text = words.ReplaceAllStringFunc(text, func(word string) string {
		if differs(word) {
			return mark
		}
		return word
	})
	return joined.ReplaceAllString(text, mark)
}

// joined matches the parts of one name. Some parts may be a name of the build.
var joined = regexp.MustCompile(mark + `(?:[-._]` + mark + `)+`)

// minHex and minRandom are the least lengths of a hexadecimal identifier and of a random name.
const minHex, minRandom = 4, 8

// differs reports whether a word is a number, a time, an identifier or a random name.
func differs(word string) bool {
	switch {
	case !strings.ContainsAny(word, "0123456789"):
		return strings.HasPrefix(word, "tmp.")
	case strings.ContainsAny(word, " :="): // an exit code
		return false
	case word[0] >= '0' && word[0] <= '9': // also of a time, and of most identifiers
		return true
	}
	return len(word) >= minRandom || strings.HasPrefix(word, "tmp.") || len(word) >= minHex &&
		strings.Trim(word, "0123456789abcdef") == ""
}
