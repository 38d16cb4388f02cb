package percent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokensAreExpandedOnce(t *testing.T) {
	values := map[byte]string{'h': "host", 'p': "%h"}
	for in, want := range map[string]string{
		"":         "",
		"plain":    "plain",
		"%h":       "host",
		"a%hb%%%h": "ahostb%host",
		"%p":       "%h", // values are not expanded
	} {
		got, err := Expand(in, values)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	got, err := ExpandAll([]string{"x", "%h"}, values)
	require.NoError(t, err)
	require.Equal(t, []string{"x", "host"}, got)
}

func TestUnknownTokensAreErrorsThatNameThem(t *testing.T) {
	_, err := Expand("a %z", map[byte]string{'h': ""})
	require.ErrorContains(t, err, "there is no %z here")
	_, err = Expand("100%", nil)
	require.ErrorContains(t, err, "at the end")
	_, err = ExpandAll([]string{"%h", "%q"}, map[byte]string{'h': ""})
	require.ErrorContains(t, err, "%q here")
}

func FuzzQuotedTextComesBack(f *testing.F) {
	f.Add("50% of %h")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Expand(strings.ReplaceAll(s, "%", "%%"), nil)
		require.NoError(t, err)
		require.Equal(t, s, got)
	})
}
