package jobdoor

import (
	"bytes"
	"crypto/rand"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// NewMarks returns a token for the marks in the log of a job: lines that tell where its steps begin and end.
func NewMarks() string { return strings.ToLower(rand.Text()[:12]) }

// MarkPrefix returns the beginning of the marks with a token.
func MarkPrefix(token string) []byte { return []byte(lang.MarkPrefix + token + "] ") }

// CutMark finds a mark in a line: the text before it, which may be an unfinished line, the number of a step, and begin
// or the result of the step. The number of a mark that cannot be read is -1.
func CutMark(line, prefix []byte) (before []byte, step int, what string, found bool) {
	before, after, found := bytes.Cut(line, prefix)
	if !found {
		return line, -1, "", false
	}
	number, what, _ := strings.Cut(string(after), " ")
	step, err := strconv.Atoi(number)
	if err != nil || step < 0 {
		step = -1
	}
	return before, step, what, true
}

// MarkBegin is in the mark of a step that begins.
const MarkBegin = "begin"
