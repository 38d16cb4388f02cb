// Package termtext makes foreign text, such as a VM's, fit for a terminal, a log or an error message: it cannot move
// the cursor, hide other text or reverse its order.
package termtext

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s as one line. Line breaks and tabs become blanks; every other character that is not printable
// (unicode.IsPrint), such as a control, a change of direction or invalid UTF-8, becomes a ?.
func Line(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case c == utf8.RuneError || !unicode.IsPrint(c):
			return '?'
		}
		return c
	}, s)
}

// Escape is Line for text whose every character matters: it escapes characters that are not printable, as in Go
// strings.
func Escape(s string) string {
	var b strings.Builder
	for i, c := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i]), 16))
		case unicode.IsPrint(c):
			b.WriteRune(c)
		default:
			quoted := strconv.QuoteRune(c)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// Cut returns s, or its first n bytes and "..." if it is longer. No character is cut in two.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// Short returns s as one line of at most n bytes and then "...". Each run of blanks and characters that are not
// printable becomes one blank.
func Short(s string, n int) string {
	return Cut(strings.Join(strings.FieldsFunc(s, func(c rune) bool {
		return c == ' ' || c == utf8.RuneError || !unicode.IsPrint(c)
	}), " "), n)
}
