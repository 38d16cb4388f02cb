// Package termtext makes foreign text, such as a VM's, safe for a terminal, a log or an error message: it cannot move
// the cursor, hide other text, reverse its order, imitate our own lines or be endless. Code that writes such text to a
// terminal calls [Text] or [Line].
package termtext

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The part of a foreign text that is shown.
const (
	maxShown = 4 << 10 // bytes
	maxLines = 50
)

// Text returns s as lines. All but the first are indented, so that no line imitates ours. It keeps at most 50
// lines and 4 KiB of s, and converts each line as Line does.
func Text(s string) string {
	lines := strings.SplitN(Cut(s, maxShown), "\n", maxLines+1)
	if len(lines) > maxLines {
		lines[maxLines] = "..."
	}
	for i, line := range lines {
		lines[i] = Line(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(lines, "\n    ")
}

// Line returns s as one line, with at most 4 KiB of s. Line breaks and tabs become blanks. Every other character that
// is not printable (unicode.IsPrint) becomes a ?, for example a control, a change of direction or invalid UTF-8.
func Line(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case c == utf8.RuneError || !unicode.IsPrint(c):
			return '?'
		}
		return c
	}, Cut(s, maxShown))
}

// Escape is Line for text in which every character matters: it escapes characters that are not printable, as in Go
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

// Cut returns s if it has at most n bytes, and otherwise its first n bytes and "...". It does not cut a character in
// two.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// Short returns s as one line of at most n bytes, and "..." if it was cut. Each run of blanks and unprintable
// characters becomes one blank.
func Short(s string, n int) string {
	return Cut(strings.Join(strings.FieldsFunc(s, func(c rune) bool {
		return c == ' ' || c == utf8.RuneError || !unicode.IsPrint(c)
	}), " "), n)
}
