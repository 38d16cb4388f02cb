package sshtarget

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPlace holds that no part of a machine's name is an option to a program, or syntax to a shell.
func FuzzPlace(f *testing.F) {
	for _, text := range []string{
		"ssh://u@h:22", "u@h", "h:22", "[::1]:22", "ssh://[::1]", "-oProxyCommand=x", "a@-x", "ssh://u:p@h",
		"ssh://%2doption@h", "ssh://%24(id)@h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, p.host)
		for _, part := range []string{p.user, p.host} {
			require.False(t, strings.HasPrefix(part, "-"), "%q", part)
			require.False(t, strings.ContainsAny(part, " \t\r\n'\"`$\\;&<>|(){}"), "%q", part)
		}
		require.Equal(t, strings.Contains(text, "://"), p.literal)
	})
}
