package termtext

import (
	"bytes"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// resetColour ends all colours.
const resetColour = "\x1b[0m"

// colour matches an escape sequence that only sets colours and the like (SGR, ECMA-48).
var colour = lazyregexp.New("\x1b\\[[0-9;:]{0,64}m")

// LogLine appends a line of a build's log to b as a terminal may show it. Colours stay, and end with the line. All else
// that a terminal would obey is shown as Escape does, but for tabs and for carriage returns at the end of the line.
func LogLine(b, line []byte) []byte {
	b, coloured := appendLine(b, line, true)
	if coloured {
		b = append(b, resetColour...)
	}
	return b
}

// PlainLine is LogLine for what is no terminal: colours are left out.
func PlainLine(b, line []byte) []byte {
	b, _ = appendLine(b, line, false)
	return b
}

func appendLine(b, line []byte, colours bool) (_ []byte, coloured bool) {
	line = bytes.TrimRight(line, "\r")
	for len(line) > 0 {
		at := colour().FindIndex(line)
		if at == nil {
			at = []int{len(line), len(line)}
		}
		for i, part := range bytes.Split(line[:at[0]], []byte{'\t'}) {
			if i > 0 {
				b = append(b, '\t')
			}
			b = append(b, Escape(string(part))...)
		}
		if colours {
			b = append(b, line[at[0]:at[1]]...)
		}
		coloured = coloured || at[1] > at[0]
		line = line[at[1]:]
	}
	return b, coloured
}
