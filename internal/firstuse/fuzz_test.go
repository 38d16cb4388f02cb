package firstuse

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse holds that no line of a file is skipped, and that writing the entries and reading them again gives the
// same.
func FuzzParse(f *testing.F) {
	key := newKey(f, 1)
	f.Add(entry{id: "i-1", key: key}.line() + "# comment\n\n")
	f.Add("@revoked " + entry{id: "i-1", key: key}.line())
	f.Add("*,a " + strings.Repeat("x", 100))
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parse([]byte(text))
		if err != nil {
			return
		}
		var again strings.Builder
		for _, e := range all {
			require.NotContains(t, e.id, "*")
			again.WriteString(e.line())
		}
		lines := 0
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				lines++
			}
		}
		require.Len(t, all, lines)
		second, err := parse([]byte(again.String()))
		require.NoError(t, err)
		require.Len(t, second, len(all))
		for i, e := range second {
			require.Equal(t, all[i].line(), e.line())
		}
	})
}
