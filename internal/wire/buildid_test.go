package wire

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBuildIDTakesOnlySafeNames(t *testing.T) {
	for _, ok := range []string{"1", "a", "-", "-rf", "...", "..a", "A.b_c-9", strings.Repeat("x", maxBuildID)} {
		id, err := ParseBuildID(ok)
		require.NoError(t, err, ok)
		require.Equal(t, BuildID(ok), id)
	}
	for name, bad := range map[string]string{
		"empty": "", "this directory": ".", "the one above": "..", "a way out": "../x", "a path": "a/b",
		"a blank": "a b", "a newline": "a\n", "a NUL": "a\x00", "a tilde": "~a", "not ASCII": "ä",
		"an invalid rune": "\xff", "one byte too long": strings.Repeat("x", maxBuildID+1),
	} {
		_, err := ParseBuildID(bad)
		require.ErrorIs(t, err, errBuildID, name)
	}
}

func TestParseBuildIDErrorsStayShort(t *testing.T) {
	_, err := ParseBuildID(strings.Repeat("s3cret", 50))
	require.ErrorContains(t, err, "300 bytes, at most 64")
	require.Less(t, len(err.Error()), 120)
}

func FuzzParseBuildIDGivesOneSafePathElement(f *testing.F) {
	for _, s := range []string{"", ".", "..", "../x", "a/b", "a\x00", "ok-1.2_3", strings.Repeat("x", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseBuildID(s)
		if err != nil {
			require.ErrorIs(t, err, errBuildID)
			require.Less(t, len(err.Error()), 512)
			return
		}
		require.Equal(t, s, string(id))
		require.NotEmpty(t, s)
		require.LessOrEqual(t, len(s), maxBuildID)
		require.Equal(t, s, path.Base("/tmp/"+s), "not one element")
		require.Equal(t, "/tmp/"+s, path.Join("/tmp", s), "not clean")
		require.NotContains(t, s, "~", "scratch directories beside the builds' own start with it")
		quoted, err := Quote("true", s)
		require.NoError(t, err)
		require.Equal(t, "true "+s, quoted, "not safe bare in a command line")
	})
}
