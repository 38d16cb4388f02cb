package carry

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/archive"
)

// attempt is an attempt with a project that has these files.
func attempt(t *testing.T, files map[string]string) (a *Attempt, said *[]string) {
	t.Helper()
	dir, said := t.TempDir(), new([]string)
	var names []string
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		names = append(names, name)
	}
	found, err := archive.Named(dir, names, func(string) {})
	require.NoError(t, err)
	defer found.Close()
	project, err := Shelf(t.TempDir()).Pack(t.Context(), found)
	require.NoError(t, err)
	return &Attempt{
		Name: "job", Prepared: &Prepared{}, Archives: []Archive{project}, TempDir: t.TempDir(),
		Say: func(line string) { *said = append(*said, line) },
	}, said
}

func TestCachesAreFoundForAJobElsewhere(t *testing.T) {
	t.Parallel()
	dir := CacheDir(filepath.Join(t.TempDir(), "project"))
	require.NoError(t, dir.Open(t.Context()))
	save := func(key, text string) {
		file, err := os.CreateTemp(string(dir), ".part-")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, dir.Keep(key, file))
	}
	save("old", "first")
	var open []*os.File
	defer func() {
		for _, file := range open {
			file.Close()
		}
	}()
	find := func(ctx context.Context, key string) (Archive, error) {
		if key == "bad" {
			return Archive{}, errors.New("a reason")
		}
		file, found, err := dir.Find(ctx, key)
		if file != nil {
			open = append(open, file)
		}
		return found, err
	}
	var e Elsewhere
	a, said := attempt(t, map[string]string{"lock": "1"})
	for n := range 2 { // the project is unpacked once
		*said, a.Caches = nil, []Cache{
			{Key: "new", Fallback: []string{"none", "old"}, Pull: true, Push: true, Paths: []string{"c"}},
			{Key: "bad", Fallback: []string{"old"}, Pull: true, Push: true, Untracked: true},
			{Key: "k", Files: []string{"lock"}, Pull: true},
			{Key: "old", Push: true, Paths: []string{"c"}, When: OnFailure},
		}
		unpacked := 0
		kept, err := e.Find(t.Context(), a, func(context.Context) (*os.File, error) {
			unpacked++
			return os.Open(a.Archives[0].Path)
		}, find)
		require.NoError(t, err)
		require.Len(t, kept, 4)
		require.Equal(t, "old", kept[0].From)
		require.EqualValues(t, 5, kept[0].Found.Size)
		for i, want := range []bool{true, true, false, true} {
			require.Equal(t, want, kept[i].IsSaved())
			require.Equal(t, i == 0, !kept[i].Found.IsZero())
		}
		require.True(t, kept[3].Wanted(false) && !kept[3].Wanted(true))
		want, err := digestOf(t.Context(), unpackedIn(t, a), []string{"lock"})
		require.NoError(t, err)
		require.Equal(t, "k-"+want, kept[2].Key, "as by local")
		lines := []string{
			`cache "bad" is not restored: a reason`,
			`cache "k-` + want + `" does not exist yet`,
		}
		require.Equal(t, 1-n, unpacked)
		require.Equal(t, lines, *said)
	}

	// The file stays as it is when another job saves the cache.
	save("old", "second")
	text, err := io.ReadAll(io.NewSectionReader(open[0], 0, 100))
	require.NoError(t, err)
	require.Equal(t, "first", string(text))
	require.NoError(t, dir.Copy("new", open[0], 5))
	_, found, err := dir.Find(t.Context(), "new")
	require.NoError(t, err)
	require.EqualValues(t, 5, found.Size)
}

// unpackedIn unpacks the project of an attempt in a new directory.
func unpackedIn(t *testing.T, a *Attempt) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, a.Archives[0].Unpack(t.Context(), dir))
	return dir
}
