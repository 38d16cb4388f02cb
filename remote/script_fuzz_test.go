package remote

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

// FuzzReadEndKey reads the first line of a script's input. The reader takes a key and its newline and no byte more, and
// never more bytes than a key has.
func FuzzReadEndKey(f *testing.F) {
	key := strings.Repeat("0f", wire.EndKeySize/2)
	f.Add(key + "\necho script")
	f.Add(key + "0\n")
	f.Add("\n\n")
	f.Fuzz(func(t *testing.T, input string) {
		in := strings.NewReader(input)
		got, err := readEndKey(in)
		taken := len(input) - in.Len()
		require.LessOrEqual(t, taken, wire.EndKeySize+1)
		if err == nil {
			require.Equal(t, input[:taken], got+"\n")
			require.Regexp(t, "^[0-9a-f]+$", got)
		}
	})
}
