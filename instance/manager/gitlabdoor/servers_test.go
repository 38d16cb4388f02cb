package gitlabdoor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/yamltree"
)

func TestServersOfAConfiguration(t *testing.T) {
	t.Parallel()
	read := func(text string) (s Servers, err error) {
		loaded, err := yamltree.Load("manager.yml", []byte(text), 1<<20)
		require.NoError(t, err)
		r := &yamltree.Reader{Text: loaded, Rules: yamltree.Rules{MaxCost: 1 << 20, Unquoted: true}}
		s.Read(r, loaded.Docs[0])
		return s, r.Err
	}
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(" glrt-secret\n"), 0o600))
	s, err := read("- {url: 'https://GitLab.example.com', token-file: " + file + ", limit: 3, " +
		"labels: {gpu: true}, environment: {A: b}, image: 'ruby:3.4'}\n" +
		"- {url: 'http://localhost', token-file: /none, name: other, share: 2, ca: ca.pem, cert: c.pem, key: k.pem}\n")
	require.NoError(t, err)
	first, second := s.Servers[0], s.Servers[1]
	require.Equal(t, "gitlab-example-com", first.Name)
	require.Equal(t, 3, first.Limit)
	require.Equal(t, "ruby:3.4", first.Image)
	require.Equal(t, map[string]string{"A": "b"}, first.Environment)
	require.Equal(t, map[string]string{"gpu": "true"}, first.Labels)
	token, err := first.Token()
	require.NoError(t, err)
	require.Equal(t, "glrt-secret", token)
	require.Equal(t, "gitlab.other", second.Party())
	require.Equal(t, "ca.pem", second.Files.CA)
	_, err = second.Token()
	require.ErrorIs(t, err, os.ErrNotExist)
	for text, want := range map[string]string{
		"{url: 'https://a', token-file: x, labels: [a]}":                        "labels must be a mapping",
		"{url: 'https://a', token-file: x, tags: [a]}":                          `unknown key "tags"`,
		"{url: gitlab.example.com, token-file: x}":                              "write that of the server",
		"{url: 'https://a'}":                                                    "token-file is missing",
		"{url: 'https://a', token-file: x, environment: {'A=B': c}}":            `"A=B" cannot be the name of a variable`,
		"{url: 'https://a', token-file: x, environment: {'': c}}":               `"" cannot be the name of a variable`,
		"{url: 'https://a', token-file: x, environment: {'a b': c}}":            `"a b" cannot be the name of a variable`,
		`{url: 'https://a', token-file: x, environment: {A: "b\0"}}`:            "the value of \"A\" has a NUL byte",
		"{url: 'https://a', token-file: x, limit: 0}":                           "write a positive number",
		"{url: 'https://a', token-file: x, image: 'a b'}":                       "write it as ruby:3.4",
		"{url: 'https://a', token-file: x, name: A}":                            "1 to 32 of a-z 0-9 -",
		"[{url: 'https://a', token-file: x}, {url: 'http://a', token-file: y}]": "two servers a",
	} {
		_, err := read(text)
		require.ErrorContains(t, err, want, "%s", text)
	}
}
