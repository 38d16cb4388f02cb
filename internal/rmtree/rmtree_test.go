package rmtree

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllBelowIsRemovedAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	tree := filepath.Join(dir, "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "closed", "below"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "closed", "below", "file"), nil, 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(tree, "link")))
	require.NoError(t, os.Chmod(filepath.Join(tree, "closed", "below"), 0o500))
	require.NoError(t, os.Chmod(filepath.Join(tree, "closed"), 0))
	require.NoError(t, Remove(tree))
	require.NoDirExists(t, tree)
	require.FileExists(t, outside)
	require.NoError(t, Remove(tree), "it is gone already")
}
