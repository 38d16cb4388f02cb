package faults

import (
	"os"
	"strconv"
	"strings"
)

// observation is the truth about a script, from its own ledger.
type observation struct {
	Started bool
	Wrote   int  // lines
	Ending  bool // it got to its end
	Code    int  // and was about to exit with this
	Twice   bool // it was started more than once
	Broken  bool // its output went nowhere
}

// readLedger reads a script's ledger. A missing file means that the script never ran. An unfinished line is ignored.
func readLedger(path string) observation {
	text, err := os.ReadFile(path)
	if err != nil {
		return observation{}
	}
	return parseLedger(string(text))
}

func parseLedger(text string) observation {
	var t observation
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
