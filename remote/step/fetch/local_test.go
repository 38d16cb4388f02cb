package fetch

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/component"
)

func sumFile(path string, _ fs.FileInfo) (string, error) {
	data, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(data)), err
}

func TestDirectoryHasTheDigestOfAComponentWithTheSameFiles(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	c := get(t, newStore(t), h.URL+"/c/echo@v1")
	digest, err := component.DirTree(c.Root, 100, 1<<20, sumFile)
	require.NoError(t, err)
	require.Equal(t, strings.TrimPrefix(c.Tree, "sha256:"), digest)

	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "steps"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "steps/step.yml"), []byte(stepText), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".git/hooks"), 0o755))
	again, err := component.DirTree(dir, 100, 1<<20, sumFile)
	require.NoError(t, err)
	require.Equal(t, digest, again)
	for _, change := range []func() error{
		func() error { return os.Chmod(filepath.Join(dir, "steps/step.yml"), 0o700) },
		func() error { return os.Symlink("nowhere", filepath.Join(dir, "link")) },
		func() error { return os.Mkdir(filepath.Join(dir, "empty"), 0o700) },
		func() error { return os.WriteFile(filepath.Join(dir, "steps/step.yml"), []byte("x"), 0o600) },
	} {
		require.NoError(t, change())
		now, err := component.DirTree(dir, 100, 1<<20, sumFile)
		require.NoError(t, err)
		require.NotEqual(t, again, now)
		again = now
	}
}
