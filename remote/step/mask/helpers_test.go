package mask

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newSet returns a set of secrets, all of which can be masked.
func newSet(t testing.TB, secrets ...string) *Set {
	t.Helper()
	s := &Set{}
	for _, secret := range secrets {
		require.NoError(t, s.Add(secret))
	}
	return s
}

// writeAll returns the output of a Writer for pieces.
func writeAll(t testing.TB, s *Set, pieces ...string) string {
	t.Helper()
	var out bytes.Buffer
	w := s.NewWriter(&out)
	for _, piece := range pieces {
		n, err := w.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	require.NoError(t, w.Close())
	return out.String()
}

// plainly is Mask in the plainest way: every byte of every occurrence is marked, and where one begins
// before another has ended they are one.
func plainly(patterns []string, text string) string {
	inner := make([]bool, len(text)) // the byte and the one before it are of the same occurrence
	hidden := make([]bool, len(text))
	for _, p := range patterns {
		for at := 0; at+len(p) <= len(text); at++ {
			if text[at:at+len(p)] != p {
				continue
			}
			for i := at; i < at+len(p); i++ {
				hidden[i] = true
				inner[i] = inner[i] || i > at
			}
		}
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !hidden[i]:
			out.WriteByte(text[i])
		case !inner[i]:
			out.WriteString(Replacement)
		}
	}
	return out.String()
}

// collides reports whether text that is not secret can become secret beside a replacement.
func collides(secret string) bool {
	for n := 1; n <= min(len(secret), len(Replacement)); n++ {
		if strings.HasPrefix(secret, Replacement[len(Replacement)-n:]) || strings.HasSuffix(secret, Replacement[:n]) {
			return true
		}
	}
	return strings.Contains(secret, Replacement) || strings.Contains(Replacement, secret)
}
