package fetch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

func TestAStoreWithoutACacheHasNothingToListPruneOrVerify(t *testing.T) {
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "none")})
	require.NoError(t, err)
	all, err := s.List()
	require.NoError(t, err)
	require.Empty(t, all)
	all, err = s.Prune(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, all)
	all, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	require.NoDirExists(t, s.cfg.Dir)
	require.NoError(t, s.Close())
}

func TestPruneRemovesUnusedComponents(t *testing.T) {
	s := newStore(t)
	used := get(t, s, zipOf(t, "a", "used"))
	old, young := get(t, s, zipOf(t, "a", "old")), get(t, s, zipOf(t, "a", "young"))
	for c, age := range map[*Component]time.Duration{used: 3 * time.Hour, old: 2 * time.Hour, young: time.Minute} {
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(filepath.Dir(c.Root), metaName), at, at))
	}
	old.Release()
	young.Release()
	cache, err := s.open()
	require.NoError(t, err)
	lost := cache.path(compDir, "lost") // it has no meta.json
	require.NoError(t, os.MkdirAll(filepath.Join(lost, treeName, "d"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(lost, treeName), 0o555))
	left := cache.path(scratchBase, "left")
	require.NoError(t, os.MkdirAll(left, 0o700))
	deepTree(t, left)

	all, err := s.List()
	require.NoError(t, err)
	trees := func(all []Cached) (names []string) {
		for _, c := range all {
			names = append(names, c.Tree)
		}
		return names
	}
	require.Equal(t, []string{"sha256:lost", used.Tree, old.Tree, young.Tree}, trees(all))
	require.True(t, all[1].InUse)
	require.False(t, all[2].InUse)
	require.Equal(t, []Source{old.Source}, withVersion(all[2].Sources, old.Version))
	require.Greater(t, all[1].Bytes, int64(len("used")))

	removed, err := s.Prune(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"sha256:lost", old.Tree}, trees(removed))
	require.NoDirExists(t, left)
	require.ElementsMatch(t, []string{filepath.Base(filepath.Dir(used.Root)), filepath.Base(filepath.Dir(young.Root))},
		components(t, s))
	used.Release()
	removed, err = s.Prune(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, []string{used.Tree, young.Tree}, trees(removed))
	for _, name := range []string{compDir, indexDir, scratchBase, lockDir} {
		entries, err := os.ReadDir(cache.path(name))
		require.NoError(t, err)
		require.Empty(t, entries, name)
	}
}

// withVersion returns sources with the version, which the cache does not keep.
func withVersion(sources []Source, version string) []Source {
	for i := range sources {
		sources[i].Version = version
	}
	return sources
}

func TestVerifyReportsAndRemovesChangedComponents(t *testing.T) {
	s := newStore(t)
	whole := get(t, s, zipFile(t, fetchtest.Texts(map[string]string{"a": "whole"})))
	changed, held := get(t, s, zipOf(t, "a", "one")), get(t, s, zipOf(t, "a", "two"))
	change(t, changed, "a", "eno")
	change(t, held, "a", "owt")
	change(t, whole, "a.pyc", "compiled")
	whole.Release()
	changed.Release()
	found, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, c := range found {
		require.Equal(t, c.Tree == held.Tree, c.InUse)
	}
	require.NoDirExists(t, changed.Root)
	require.DirExists(t, held.Root)
	require.NoFileExists(t, filepath.Join(whole.Root, "a.pyc"), "what a step adds is no change")
	held.Release()
	found, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	found, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
}
