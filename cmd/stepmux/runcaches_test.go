package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
)

// A job got a cache by the name of a fallback and did not change it: the cache had no name of its own. While another
// job saved the cache of the fallback, a VM got the beginning of the one and the end of the other.
func TestACacheOfAFallbackIsSavedAsItWas(t *testing.T) {
	t.Parallel()
	v := &vmCaches{dir: carry.CacheDir(filepath.Join(t.TempDir(), "project"))}
	require.NoError(t, v.dir.Open(t.Context()))
	save := func(text string) {
		file, err := os.CreateTemp(string(v.dir), ".new-")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, v.dir.Keep("old", file))
	}
	save("first")
	var said []string
	caches, end := v.of(&carry.Attempt{
		Prepared: &carry.Prepared{Caches: []carry.Cache{
			{Key: "new", Fallback: []string{"old"}, Pull: true, Push: true, Paths: []string{"c"}},
		}},
		Say: func(line string) { said = append(said, line) },
	})
	defer end()
	for range 2 { // as on another VM
		all, err := caches(t.Context())
		require.NoError(t, err)
		require.Len(t, all.Before, 1)
		save("another")
		from, err := all.Before[0].Open(t.Context())
		require.NoError(t, err)
		text, err := io.ReadAll(from)
		require.NoError(t, err)
		require.NoError(t, from.Close())
		require.Equal(t, "first", string(text))
		require.Equal(t, all.Before[0].Digest, all.After[0].Has)
		all.Before[0].Unpacked("")
		require.Empty(t, all.After[0].Save(t.Context(), nil, files.ErrSame))
	}
	require.Equal(t, []string{
		`cache "old" is restored`, `cache "new" is saved`, `cache "new" is restored`, `cache "new" is saved`,
	}, said)
	file, found, err := v.dir.Find(t.Context(), "new")
	require.NoError(t, err)
	defer file.Close()
	require.EqualValues(t, len("first"), found.Size)
}
