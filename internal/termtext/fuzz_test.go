package termtext_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

// FuzzLine holds that no text makes a terminal do anything but show it.
func FuzzLine(f *testing.F) {
	f.Add("plain\n\x1b[2J\x07\u009b31m\xff")
	f.Fuzz(func(t *testing.T, s string) {
		line := termtext.Line(s)
		require.False(t, strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c >= 0x7f && c < 0xa0 }), "%q", line)
		require.Equal(t, utf8.RuneCountInString(s), utf8.RuneCountInString(line), "nothing is lost")
		require.Equal(t, line, termtext.Line(line))
	})
}
