package tokens

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The result is the same however the text is cut into pieces.
func TestTheRestOfAWordThatBeginsWithAPrefixIsReplaced(t *testing.T) {
	t.Parallel()
	prefixes := []string{"glpat-", "glrt-", "_session=", strings.Repeat("x", maxPrefix)}
	for text, want := range map[string]string{
		"":                       "",
		"glpat-":                 "glpat-",
		"glpat- x":               "glpat- x",
		"a glpat-a.B_9=z-! glrt": "a glpat-[MASKED]! glrt",
		"xglpat-1\nglpat-2":      "xglpat-[MASKED]\nglpat-[MASKED]",
		"glpglpat-1":             "glpglpat-[MASKED]",
		"glpat-glrt-1 2":         "glpat-[MASKED] 2",
		"glpat-[MASKED]":         "glpat-[MASKED]",
		"_session=\xff\x00abc":   "_session=\xff\x00abc",
		strings.Repeat("y", 4*maxPrefix) + "glrt-t": strings.Repeat("y", 4*maxPrefix) + "glrt-[MASKED]",
		strings.Repeat("x", maxPrefix) + "y":        strings.Repeat("x", maxPrefix) + "[MASKED]",
	} {
		require.Equal(t, want, Mask(text, prefixes))
		for size := 1; size < 9; size++ {
			var out strings.Builder
			w := &Writer{To: &out, Prefixes: prefixes}
			for rest := []byte(text); len(rest) > 0; {
				n, err := w.Write(rest[:min(size, len(rest))])
				require.NoError(t, err)
				rest = rest[n:]
			}
			require.Equal(t, want, out.String())
		}
	}
	require.Equal(t, "glpat-1", Mask("glpat-1", nil))
}
