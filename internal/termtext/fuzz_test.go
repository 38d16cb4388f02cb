package termtext_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

// colours matches the escape sequences that may be in a line of a log.
var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// FuzzLine holds that a terminal only shows any text, and that an error message stays bounded.
func FuzzLine(f *testing.F) {
	f.Add("plain\n\x1b[2J\x07\u009b31m\xff\u202e", 5)
	f.Fuzz(func(t *testing.T, s string, n int) {
		line, text := termtext.Line(s), termtext.Text(s)
		if len(s) <= 4<<10 {
			require.Equal(t, utf8.RuneCountInString(s), utf8.RuneCountInString(line), "nothing is lost")
		}
		require.LessOrEqual(t, len(line), 4<<10+len("..."))
		require.LessOrEqual(t, len(text), 5<<10)
		require.LessOrEqual(t, strings.Count(text, "\n"), 50)
		require.Equal(t, strings.Count(text, "\n"), strings.Count(text, "\n    "), "further lines are indented")
		require.Equal(t, line, termtext.Line(line))
		escaped := termtext.Escape(s)
		for _, shown := range []string{line, escaped, strings.ReplaceAll(text, "\n", "")} {
			require.True(t, utf8.ValidString(shown))
			require.False(t, strings.ContainsFunc(shown, func(c rune) bool { return !unicode.IsPrint(c) }), "%q", shown)
		}
		require.Equal(t, escaped, termtext.Escape(escaped))
		logged := colours.ReplaceAllString(string(termtext.LogLine(nil, []byte(s))), "")
		for _, c := range logged {
			require.True(t, c == '\t' || unicode.IsPrint(c), "%q", logged)
		}
		if n >= 0 {
			require.LessOrEqual(t, len(termtext.Cut(s, n)), max(n+len("..."), n))
			require.True(t, utf8.ValidString(termtext.Cut(line, n)))
		}
	})
}
