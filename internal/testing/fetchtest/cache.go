package fetchtest

import (
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// CacheDir is t.TempDir for a directory with a cache of steps. An ordinary user cannot remove its read-only directories
// by os.RemoveAll, so CacheDir removes them at the end.
func CacheDir(t interface {
	TB
	TempDir() string
},
) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			require.NoError(t, rmtree.Remove(filepath.Join(dir, e.Name())))
		}
	})
	return dir
}
