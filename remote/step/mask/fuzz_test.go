package mask

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzWriter checks three properties for any secrets and any text: the output of a Writer does not depend on how the
// text is cut, it equals the output of the simplest algorithm, and it contains no secret.
func FuzzWriter(f *testing.F) {
	f.Add("geheim\x00heimlich", "so geheimlich wie geheim", []byte{3, 1})
	f.Add("aaaa\x00aaaaaaaa", "aaaaaaaaaaaabaaaa", []byte{1})
	f.Add("abcdabce\x00cdab\x00dabc", "abcdabcdabcdabce", []byte{5, 2, 9})
	f.Add("line one\nline two\r\n", "line one\r\nline two\nline one\nline two", []byte{7})
	f.Add("pass/word+?&", "cGFzcy93b3JkKz8m pass%2fword%2b%3f%26 eHBhc3Mvd29yZCs_Jg", []byte{4})
	f.Add("MASK\x00[MAS\x00KED]", "[MASKED] [MASKED", []byte{2})
	f.Fuzz(func(t *testing.T, secrets, text string, cuts []byte) {
		if len(secrets)+len(text) > 2000 {
			return // the plainest way is slow
		}
		set := &Set{}
		for secret := range strings.SplitSeq(secrets, "\x00") {
			if err := set.Add(secret); err != nil {
				require.Less(t, len(secret), minLen)
			}
		}
		want := plainly(set.patterns, text)
		require.Equal(t, want, set.Mask(text))

		longest := 0
		for _, p := range set.patterns {
			longest = max(longest, len(p))
		}
		var out bytes.Buffer
		w := set.NewWriter(&out)
		w.timer = time.NewTimer(0) // which does nothing when its time is up
		for rest := text; rest != ""; {
			n := len(rest)
			if len(cuts) > 0 {
				n, cuts = min(n, int(cuts[0])), cuts[1:]
			}
			_, err := w.Write([]byte(rest[:n]))
			require.NoError(t, err)
			require.Less(t, len(w.held), max(longest, 1))
			require.True(t, strings.HasPrefix(want, out.String()))
			rest = rest[n:]
		}
		require.NoError(t, w.Close())
		require.Equal(t, want, out.String())

		var slow bytes.Buffer // the time of what is held back is up after each byte
		w = set.NewWriter(&slow)
		w.timer = time.NewTimer(0)
		for i := range len(text) {
			_, err := w.Write([]byte{text[i]})
			require.NoError(t, err)
			w.expire()
			require.Equal(t, len(w.held), w.passed)
		}
		require.NoError(t, w.Close())
		if !strings.Contains(slow.String(), Replacement) {
			require.Equal(t, text, slow.String())
		}
		for secret := range set.secrets {
			if !collides(secret) {
				require.NotContains(t, out.String(), secret)
				require.NotContains(t, slow.String(), secret)
			}
		}
	})
}
