package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildUserIsANameOrARange(t *testing.T) {
	for text, want := range map[string]BuildUser{
		"":            {},
		"ci":          {Name: "ci"},
		"build-bot-1": {Name: "build-bot-1"},
		"2000-2015":   {First: 2000, Last: 2015},
		"1000-1000":   {First: 1000, Last: 1000},
	} {
		is, err := ParseBuildUser(text)
		require.NoError(t, err)
		require.Equal(t, want, is)
	}
	for text, why := range map[string]string{
		"0-10":          "root",
		"999-1010":      "root",
		"65000-66000":   "nobody",
		"2010-2000":     "1 to 4096 ids",
		"100000-200000": "1 to 4096 ids",
		"a b":           "use the name of a user",
		"-x":            "use the name of a user",
		"a:b":           "use the name of a user",
		"../x":          "use the name of a user",
		"a\nb":          "use the name of a user",
	} {
		_, err := ParseBuildUser(text)
		require.ErrorContains(t, err, why, text)
	}
}
