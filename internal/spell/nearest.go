// Package spell guesses the intended word from a misspelled one ([Nearest]).
package spell

import "strings"

const (
	// maxWord is the longest word that is compared, in bytes.
	maxWord = 64
	// maxCandidates bounds how many words are compared.
	maxCandidates = 1000
	// maxDistance is how far a word may be away, and lettersEach how many letters of the longer word it takes for each
	// step: a short word is near to many others.
	maxDistance, lettersEach = 2, 3
)

// Nearest returns the word of words that is most similar to key, or "" if no word is similar. It ignores the difference
// of upper and lower case, and of - and _. Words are without what is common to all, such as the -- of flags.
func Nearest(key string, words []string) string {
	if len(key) > maxWord {
		return ""
	}
	key = fold(key)
	best, least, compared := "", maxDistance+1, 0
	for _, word := range words {
		if len(word) > maxWord || max(len(word)-len(key), len(key)-len(word)) >= least {
			continue
		}
		if compared++; compared > maxCandidates {
			break
		}
		if d := distance(key, fold(word)); d < least && d <= max(len(key), len(word))/lettersEach {
			best, least = word, d
		}
	}
	return best
}

func fold(word string) string { return strings.ToLower(strings.ReplaceAll(word, "-", "_")) }

// distance returns how many bytes to insert, delete, replace or swap with their neighbour to turn a into b (optimal
// string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
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
		before, last, row = last, row, before
	}
	return last[len(b)]
}
