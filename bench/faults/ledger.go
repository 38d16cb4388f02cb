package faults

import (
	"os"
	"strconv"
	"strings"
)

// Truth is what a script really did, by its own ledger.
type Truth struct {
	Started bool
	Wrote   int  // lines
	Ending  bool // it got to its end
	Code    int  // and was about to exit with this
	Twice   bool // it was started more than once
	Broken  bool // its output went nowhere
}

// readLedger reads a script's ledger. One that is not there is that of a script that never ran; an unfinished line
// says nothing.
func readLedger(path string) Truth {
	text, err := os.ReadFile(path)
	if err != nil {
		return Truth{}
	}
	return parseLedger(string(text))
}

func parseLedger(text string) Truth {
	var t Truth
	for line := range strings.Lines(text) {
		what, ended := strings.CutSuffix(line, "\n")
		if !ended {
			break
		}
		verb, rest, _ := strings.Cut(what, " ")
		n, _ := strconv.Atoi(rest)
		switch verb {
		case "started":
			t.Twice = t.Twice || t.Started
			t.Started = true
		case "wrote":
			t.Wrote = n
		case "ending":
			t.Ending, t.Code = true, n
		case "broken":
			t.Broken = true
		}
	}
	return t
}
