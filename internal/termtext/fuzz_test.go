package termtext_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

// FuzzLine holds that a terminal only shows any text, and that an error message stays bounded.
func FuzzLine(f *testing.F) {
	f.Add("plain\n\x1b[2J\x07\u009b31m\xff\u202e", 5)
	f.Fuzz(func(t *testing.T, s string, n int) {
		line := termtext.Line(s)
		require.Equal(t, utf8.RuneCountInString(s), utf8.RuneCountInString(line), "nothing is lost")
		require.Equal(t, line, termtext.Line(line))
		escaped := termtext.Escape(s)
		for _, shown := range []string{line, escaped} {
			require.True(t, utf8.ValidString(shown))
			require.False(t, strings.ContainsFunc(shown, func(c rune) bool { return !unicode.IsPrint(c) }), "%q", shown)
		}
		require.Equal(t, escaped, termtext.Escape(escaped))
		if n >= 0 {
			require.LessOrEqual(t, len(termtext.Cut(s, n)), max(n+len("..."), n))
			require.True(t, utf8.ValidString(termtext.Cut(line, n)))
		}
	})
}
