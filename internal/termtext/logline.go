package termtext

import (
	"bytes"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// resetColour ends all colours.
const resetColour = "\x1b[0m"

// colour matches an escape sequence that only sets colours and similar attributes (SGR, ECMA-48).
var colour = lazyregexp.New("\x1b\\[[0-9;:]{0,64}m")

// LogLine appends a line of a build's log to b in a form that is safe for a terminal. It keeps colours, and ends them
// with the line. It keeps tabs, and carriage returns at the end of the line. All else that a terminal could interpret
// is shown as Escape does.
func LogLine(b, line []byte) []byte {
	b, coloured := appendLine(b, line, true)
	if coloured {
		b = append(b, resetColour...)
	}
	return b
}

// PlainLine is LogLine without colours, for output that is not a terminal.
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
