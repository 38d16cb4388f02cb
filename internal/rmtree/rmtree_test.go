package rmtree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

func TestRemoveFollowsNoLinkAndTakesMoreThanABatch(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	tree := filepath.Join(dir, "tree")
	require.NoError(t, os.Mkdir(tree, 0o700))
	for i := range 2*batch + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(tree, fmt.Sprint(i)), nil, 0o600))
	}
	require.NoError(t, os.Symlink(outside, filepath.Join(tree, "link")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "tree-link")))
	require.NoError(t, Remove(filepath.Join(dir, "tree-link")))
	require.NoError(t, Remove(tree))
	require.NoDirExists(t, tree)
	require.FileExists(t, filepath.Join(outside, "precious"))
	require.NoError(t, Remove(filepath.Join(dir, "no", "such", "directory")))
}

func TestRemoveWantsTheNameOfAnEntry(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("precious", nil, 0o600))
	for _, path := range []string{"", ".", "./", "..", dir + "/."} {
		require.Error(t, Remove(path), "%q", path)
	}
	require.FileExists(t, "precious")
}

func TestRemoveInEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tree"), 0o700))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	require.ErrorIs(t, RemoveIn(ctx, root, "tree"), because)
	require.DirExists(t, filepath.Join(dir, "tree"))
}

func TestRemoveReportsWhatItCannotRemoveAndRemovesTheRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can mount a file system, which nobody can remove")
	}
	dir := t.TempDir()
	busy := filepath.Join(dir, "tree", "m-busy")
	require.NoError(t, os.MkdirAll(busy, 0o700))
	for _, name := range []string{"a", "z"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "tree", name), 0o700))
	}
	if err := unix.Mount("tmpfs", busy, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(busy, unix.MNT_DETACH)) })
	err := Remove(filepath.Join(dir, "tree"))
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "m-busy")
	left, err := os.ReadDir(filepath.Join(dir, "tree"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "m-busy", left[0].Name())
}
