package vmconfig

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildUserIsANameOrARange(t *testing.T) {
	type user struct {
		name        string
		first, last int
	}
	for text, want := range map[string]user{
		"":            {},
		"ci":          {name: "ci"},
		"build-bot-1": {name: "build-bot-1"},
		"2000-2015":   {first: 2000, last: 2015},
		"1000-1000":   {first: 1000, last: 1000},
	} {
		name, first, last, err := ParseUser(text)
		require.NoError(t, err)
		require.Equal(t, want, user{name, first, last})
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
		_, _, _, err := ParseUser(text)
		require.ErrorContains(t, err, why, text)
	}
}
