package termtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

func TestLineHasNothingATerminalObeys(t *testing.T) {
	require.Equal(t, "a?[31m b c? ü?", termtext.Line("a\x1b[31m\nb\tc\r ü\u009b"))
}

func TestShortIsOneBoundedLine(t *testing.T) {
	require.Equal(t, "a [31m b c d", termtext.Short("a\x1b[31m\n\n b\tc \xff\u009bd ", 20))
	require.Equal(t, "ü...", termtext.Short("üü", 3))
}
