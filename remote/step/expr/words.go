package expr

import (
	"slices"
	"strings"
)

// functions are the names that can be called.
var functions = []string{"bool", "num", "str"}

// reserved are the words the language keeps for itself. They can be keys, not names.
var reserved = strings.Fields(`array as break case const continue default else fallthrough float for func
	function goto if import in int let loop map namespace number object package range return string struct
	switch type var void while`)

func isFunction(word string) bool { return slices.Contains(functions, word) }

func isReserved(word string) bool { return slices.Contains(reserved, word) }

// literals are the words that stand for a value.
var literals = map[string]Value{"null": {}, "true": boolean(true), "false": boolean(false)}

// foreign are operators of other languages, and what to write for them.
var foreign = map[string]string{
	"=":   "equality is ==",
	"&":   "and is &&",
	"|":   "or is ||, and there are no filters",
	"?":   "for cond ? a : b write cond && a || b",
	"and": "and is &&",
	"or":  "or is ||",
	"not": "not is !",
}

// isWord reports whether s can follow a dot.
func isWord(s string) bool {
	p := parser{text: s, end: len(s)}
	return p.word() == s && s != ""
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// maxCandidates bounds the search for a near miss.
const maxCandidates = 1000

// nearest returns the word of words that was most likely meant by word, or "".
func nearest(word string, words []string) string {
	if len(word) > maxQuoted {
		return ""
	}
	folded := strings.ToLower(word)
	best, least, compared := "", 3, 0
	for _, w := range words {
		if len(w) > maxQuoted || max(len(w)-len(word), len(word)-len(w)) >= least {
			continue
		}
		if compared++; compared > maxCandidates {
			break
		}
		if d := distance(folded, strings.ToLower(w)); d < least && d < len(w)-1 {
			best, least = w, d
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
