// Package spell guesses what somebody who misspelt a key meant.
package spell

import "strings"

const (
	// maxWord is the longest word that is worth a guess, in bytes.
	maxWord = 64
	// maxDistance is the largest distance of a guess.
	maxDistance = 2
	// maxCandidates bounds the search.
	maxCandidates = 1000
)

// fold makes words equal that differ only by case, or by - and _.
func fold(word string) string { return strings.ToLower(strings.ReplaceAll(word, "-", "_")) }

// Nearest returns the word of words that key was most likely meant to be, or "".
func Nearest(key string, words []string) string {
	if len(key) > maxWord {
		return ""
	}
	key = fold(key)
	best, least, compared := "", maxDistance+1, 0
	for _, word := range words {
		if max(len(word)-len(key), len(key)-len(word)) >= least {
			continue
		}
		if compared++; compared > maxCandidates {
			break
		}
		if d := distance(key, fold(word)); d < least && d < len(word)-1 {
			best, least = word, d
		}
	}
	return best
}

// distance is the least number of bytes to insert, delete, replace or swap with their neighbour to
// make b of a (optimal string alignment).
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
