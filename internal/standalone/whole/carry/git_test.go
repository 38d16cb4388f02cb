package carry

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/checkout"
)

// inode returns the number of a file, which a copy does not share.
func inode(t *testing.T, file string) uint64 {
	t.Helper()
	s, err := stampOf(file)
	require.NoError(t, err)
	return s.inode
}

func TestAJobGetsARepositoryThatNoOtherJobTouched(t *testing.T) {
	from := t.TempDir()
	names := []string{".git/HEAD", ".git/objects/pack/p.pack", ".git/refs"}
	require.NoError(t, os.MkdirAll(filepath.Join(from, ".git/objects/pack"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(from, ".git/refs"), 0o755))
	for _, name := range names[:2] {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(name), 0o644))
	}
	all := NewRepositories(checkout.Copy{Dir: from, Names: names}, t.TempDir())
	job := func(do func(dir string)) (own uint64) {
		dir := t.TempDir()
		back, err := all.give(t.Context(), dir)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(dir, names[1]))
		require.NoError(t, err)
		require.Equal(t, names[1], string(text), "as it was made")
		entries, err := os.ReadDir(filepath.Join(dir, ".git/refs"))
		require.NoError(t, err)
		require.Empty(t, entries)
		own = inode(t, filepath.Join(dir, names[0]))
		require.NotEqual(t, inode(t, filepath.Join(from, names[0])), own, "it shares no file with the first one")
		do(dir)
		back()
		require.NoError(t, os.RemoveAll(dir))
		return own
	}
	untouched := func(string) {}
	first := job(untouched)
	require.Equal(t, first, job(untouched))
	info, err := os.Stat(filepath.Join(from, names[1]))
	require.NoError(t, err)
	for name, touch := range map[string]func(dir string){
		"a file is written, and has its size and time again": func(dir string) {
			file := filepath.Join(dir, names[1])
			require.NoError(t, os.WriteFile(file, []byte("git/objects/pack/p.pack."), 0o644))
			require.NoError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
		},
		"a new file": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".git/refs/x"), nil, 0o644))
		},
		"a hook":         func(dir string) { require.NoError(t, os.Mkdir(filepath.Join(dir, ".git/hooks"), 0o755)) },
		"a file is gone": func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, names[0]))) },
		"another mode":   func(dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, names[0]), 0o600)) },
		"it is gone":     func(dir string) { require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git"))) },
		"it is replaced": func(dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "old")))
			require.NoError(t, checkout.Copy{Dir: from, Names: names}.Into(t.Context(), dir))
		},
		"a link in its place": func(dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git")))
			require.NoError(t, os.Symlink(filepath.Join(from, ".git"), filepath.Join(dir, ".git")))
		},
	} {
		job(touch)
		require.Empty(t, all.free, name)
		job(untouched) // whose repository is a copy
		require.Len(t, all.free, 1, name)
	}
	var none *Repositories
	dir := t.TempDir()
	back, err := none.give(t.Context(), dir)
	require.NoError(t, err)
	back()
	require.NoDirExists(t, filepath.Join(dir, ".git"))
}
