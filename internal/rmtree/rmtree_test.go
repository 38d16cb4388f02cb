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

// Symptom: the removal of an open directory, which a job may have filled and moved, could not be stopped.
func TestRemovalOfAnOpenDirectoryEndsWithItsContext(t *testing.T) {
	because := errors.New("because")
	none := func(string) bool { return false }
	for name, remove := range map[string]func(context.Context, *os.File) error{
		"RemoveOpen": RemoveOpen,
		"EmptyOpen":  func(ctx context.Context, dir *os.File) error { return EmptyOpen(ctx, dir, none) },
		"EmptyOpen between two entries": func(ctx context.Context, dir *os.File) error {
			ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
			return EmptyOpen(ctx, dir, func(string) bool {
				cancel(because)
				return false
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := t.TempDir()
			for i := range batch + 1 {
				require.NoError(t, os.WriteFile(filepath.Join(at, fmt.Sprint(i)), nil, 0o600))
			}
			dir, err := os.Open(at)
			require.NoError(t, err)
			defer dir.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(because)
			require.ErrorIs(t, remove(ctx, dir), because)
			left, err := os.ReadDir(at)
			require.NoError(t, err)
			require.Len(t, left, batch+1)
		})
	}
}

func TestRemoveReportsFilesItCannotRemoveAndRemovesTheRest(t *testing.T) {
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

func TestRemoveOpenFindsADirectoryThatWasMoved(t *testing.T) {
	top := t.TempDir()
	at := filepath.Join(top, "dir")
	require.NoError(t, os.MkdirAll(filepath.Join(at, "closed"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(at, "closed", "file"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(at, "keep"), nil, 0o600))
	require.NoError(t, os.Chmod(filepath.Join(at, "closed"), 0))
	dir, err := os.Open(at)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, os.Rename(at, at+"-moved"))
	require.NoError(t, os.Mkdir(at, 0o700))

	require.NoError(t, EmptyOpen(t.Context(), dir, func(name string) bool { return name == "keep" }))
	require.NoDirExists(t, filepath.Join(at+"-moved", "closed"))
	require.FileExists(t, filepath.Join(at+"-moved", "keep"))
	require.NoError(t, RemoveOpen(t.Context(), dir))
	require.NoDirExists(t, at+"-moved")
	require.DirExists(t, at, "another one")
	require.NoError(t, RemoveOpen(t.Context(), dir), "it was removed")
	require.DirExists(t, at)
}

// deepTree makes n nested directories, deeper than a path can tell, and returns the first.
func deepTree(t *testing.T, n int) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "top")
	require.NoError(t, os.Mkdir(top, 0o700))
	dir, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range n {
		require.NoError(t, unix.Mkdirat(dir, "directory", 0o700))
		next, err := unix.Openat(dir, "directory", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Fchmod(dir, 0o500))
		require.NoError(t, unix.Close(dir))
		dir = next
	}
	require.NoError(t, unix.Close(dir))
	return top
}

// Symptom: a tree that was deeper than the limit of open files, or than a path may be long, was never removed.
//
//stepmux:faults fetch | A directory tree that is deeper than a path can tell is never removed
//stepmux:with remote/step/fetch.TestDeepTreesOfTheCacheAreRemoved
func TestATreeOfAnyDepthIsRemoved(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: before.Max}))
	top := deepTree(t, 3000)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(top), "precious"), nil, 0o600))
	require.NoError(t, Remove(top))
	require.NoDirExists(t, top)
	left, err := os.ReadDir(filepath.Dir(top))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing else was touched or left")
}

//stepmux:faults fetch | Two processes that remove the same directory tree at once: one ends with an error
func TestRemoveIsNoErrorWhereAnotherRemovesTheSameTree(t *testing.T) {
	// Symptom: a serve whose caller removed its directory at the same time ended with "no such file or directory".
	dir := t.TempDir()
	for round := range 5 {
		tree := filepath.Join(dir, fmt.Sprint(round))
		for i := range 30 {
			require.NoError(t, os.MkdirAll(filepath.Join(tree, fmt.Sprint(i), "a", "b"), 0o700))
		}
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() { errs <- Remove(tree) }()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		require.NoDirExists(t, tree)
	}
}
