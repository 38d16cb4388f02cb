// Package termtext makes text that may come from a VM fit for a terminal.
package termtext

import "strings"

// Line returns s as one line, without what a terminal would obey.
func Line(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case c < ' ', c >= 0x7f && c < 0xa0:
			return '?'
		}
		return c
	}, s)
}
