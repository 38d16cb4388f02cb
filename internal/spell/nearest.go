// Package spell guesses what somebody who misspelt a key meant.
package spell

import "strings"

// maxWord is the longest word that is worth a guess, in bytes.
const maxWord = 64

// Nearest returns the word of words that key was most likely meant to be, or "". Words are of lower case,
// with underscores.
func Nearest(key string, words []string) string {
	if len(key) > maxWord {
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
