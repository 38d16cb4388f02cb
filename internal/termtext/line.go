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

// Short returns foreign text for an error message: on one line, at most n bytes of it, and valid UTF-8 without
// control characters.
func Short(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c == '\uFFFD' {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, " "))
	if s = strings.Join(strings.Fields(s), " "); len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "..."
	}
	return s
}
