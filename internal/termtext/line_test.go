package termtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

func TestLineHasNothingThatATerminalObeys(t *testing.T) {
	require.Equal(t, "a?[31m b c? ü??", termtext.Line("a\x1b[31m\nb\tc\r ü\u009b\xff"))
	require.Equal(t, "gpj?.exe a?b?", termtext.Line("gpj\u202e.exe a\u2028b\u200b"), "nor a reader")
}

func TestEscapeLosesNothing(t *testing.T) {
	require.Equal(t, `a\x1b[31m\nb "ü" \ \u202e\xff`, termtext.Escape("a\x1b[31m\nb \"ü\" \\ \u202e\xff"))
}

func TestCutKeepsWholeCharacters(t *testing.T) {
	require.Equal(t, "aü", termtext.Cut("aü", 3))
	require.Equal(t, "a...", termtext.Cut("aüb", 2))
	require.Equal(t, "aü...", termtext.Cut("aüb", 3))
	require.Equal(t, "...", termtext.Cut("ü", 1))
}

func TestShortIsOneBoundedLine(t *testing.T) {
	require.Equal(t, "a [31m b c d", termtext.Short("a\x1b[31m\n\n b\tc \xff\u009bd ", 20))
	require.Equal(t, "ü...", termtext.Short("üü", 3))
}
