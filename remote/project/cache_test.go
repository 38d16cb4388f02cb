package project

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/remote/archive"
)

// saved collects a cache of the build, and returns its archive or the reason for its lack.
func saved(t *testing.T, b *build, has string, paths ...string) (archive *files.Project, err error) {
	t.Helper()
	c := files.Cache{
		Artifacts: files.Artifacts{Paths: paths, Keep: true}, Has: has,
		Save: func(_ context.Context, from *os.File, why error) string {
			if err = why; why == nil {
				text, readErr := io.ReadAll(from)
				require.NoError(t, readErr)
				archive = projectOf(text)
				archive.Cache = true
			}
			return "line"
		},
	}
	arriving := c.Collect()
	defer arriving.Close()
	_, failed := arriving.Receive(t.Context(), b)
	require.Equal(t, "line", c.End(t.Context(), arriving, failed))
	return archive, err
}

// A virtual environment of Python has a link to the interpreter. A cache that did not change was sent again.
func TestACacheStaysOnItsVMWithItsLinks(t *testing.T) {
	t.Parallel()
	cache, vm := cacheDir(t), &files.VM{}
	first := newBuild(t, cache)
	dir, _, err := vm.Place(t.Context(), first, 0, nil)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "venv", "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "venv", "lib"), []byte("text"), 0o640))
	require.NoError(t, os.Symlink("/usr/bin/env", filepath.Join(dir, "venv", "bin", "python")))
	archive, err := saved(t, first, "", "venv")
	require.NoError(t, err)
	_, err = saved(t, first, archive.Digest, "none")
	require.ErrorIs(t, err, files.ErrNoFiles)

	second := newBuild(t, cache)
	_, _, err = vm.Place(t.Context(), second, 0, packed(t, map[string]string{"a": "1"}))
	require.NoError(t, err)
	archive.Open = func(context.Context) (io.ReadSeekCloser, error) {
		t.Error("it is sent to the VM that has it")
		return nil, os.ErrNotExist
	}
	archive.Unpacked = func(leftOut string) { require.Empty(t, leftOut) }
	dir, _, err = vm.Place(t.Context(), second, 1, archive)
	require.NoError(t, err)
	target, err := os.Readlink(filepath.Join(dir, "venv", "bin", "python"))
	require.NoError(t, err)
	require.Equal(t, "/usr/bin/env", target)
	_, err = saved(t, second, archive.Digest, "venv")
	require.ErrorIs(t, err, files.ErrSame)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "venv", "lib"), []byte("more"), 0o640))
	changed, err := saved(t, second, archive.Digest, "venv")
	require.NoError(t, err)
	require.NotEqual(t, archive.Digest, changed.Digest)
}

// Untracked files are those that the archive of the project does not have.
func TestUntrackedFilesOfACache(t *testing.T) {
	t.Parallel()
	names := func(b *build) string {
		arriving := (&files.Cache{Untracked: true}).Collect()
		defer arriving.Close()
		_, err := arriving.Receive(t.Context(), b)
		require.NoError(t, err)
		to, list := t.TempDir(), []string{}
		c := files.Cache{Save: func(ctx context.Context, from *os.File, err error) string {
			require.NoError(t, err)
			_, err = archive.Extract(ctx, from, to, archive.Bounds{})
			require.NoError(t, err)
			return ""
		}}
		c.End(t.Context(), arriving, nil)
		found, err := os.ReadDir(to)
		require.NoError(t, err)
		for _, e := range found {
			list = append(list, e.Name())
		}
		return strings.Join(list, " ")
	}
	for _, cache := range []string{cacheDir(t), ""} {
		for _, p := range []*files.Project{packed(t, map[string]string{"a": "1", "b": "1"}), nil} {
			b := newBuild(t, cache)
			dir, _, err := (&files.VM{}).Place(t.Context(), b, 0, p)
			require.NoError(t, err)
			if p != nil {
				_, _, err = (&files.VM{}).Place(t.Context(), b, 1, packed(t, map[string]string{"b": "2", "c": "2"}))
				require.NoError(t, err)
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "made"), nil, 0o600))
			if p == nil {
				require.Equal(t, "made", names(b))
				continue
			}
			require.Equal(t, "c made", names(b))
		}
	}
}

// A file that another program has put in the place of a cache failed the job.
//
//stepmux:faults artifacts | A cache that cannot be unpacked on a VM, or leads out, fails the job
//stepmux:with connector.TestACacheNeverFailsAJob
func TestABuildGoesOnWithoutACacheThatCannotBeUnpacked(t *testing.T) {
	t.Parallel()
	vm, b, note := &files.VM{}, newBuild(t, cacheDir(t)), ""
	dir, _, err := vm.Place(t.Context(), b, 0, nil)
	require.NoError(t, err)
	for after, bad := range []*files.Project{
		projectOf([]byte("no archive")), packed(t, map[string]string{"../out": "x"}),
	} {
		_, _, err = vm.Place(t.Context(), newBuild(t, cacheDir(t)), 0, bad)
		require.ErrorContains(t, err, "unpack the project: ")
		bad.Cache, bad.Unpacked = true, func(text string) { note = text }
		for range 2 { // as after an answer that was lost
			note = ""
			_, _, err = vm.Place(t.Context(), b, after+1, bad)
			require.NoError(t, err)
			require.True(t, strings.Contains(note, "neither") || strings.Contains(note, ".."), note)
		}
	}
	require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "out"))
	_, _, err = vm.Place(t.Context(), b, 3, packed(t, map[string]string{"a": "1"}))
	require.NoError(t, err)
}
