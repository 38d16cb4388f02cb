package steps

import (
	"fmt"
	"strings"
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
func nearest(key string, words []string) string {
	if len(key) > maxQuoted {
		return ""
	}
	key = strings.ToLower(strings.ReplaceAll(key, "-", "_"))
	best, bestDistance := "", 3
	for _, word := range words {
		if d := distance(key, word); d < bestDistance && d < len(word)-1 {
			best, bestDistance = word, d
		}
	}
	return best
}

// distance is the least number of bytes to insert, delete, replace or swap with their neighbour to
// make b of a (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
