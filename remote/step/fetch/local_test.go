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
	"golang.org/x/sys/unix"
)

func sumFile(path string, _ fs.FileInfo) (string, error) {
	data, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(data)), err
}

func TestDirectoryHasTheDigestOfAComponentWithTheSameFiles(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	c := get(t, newStore(t), h.URL+"/c/echo@v1")
	digest, err := DirTree(c.Root, 100, 1<<20, sumFile)
	require.NoError(t, err)
	require.Equal(t, strings.TrimPrefix(c.Tree, "sha256:"), digest)

	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "steps"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "steps/step.yml"), []byte(stepText), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".git/hooks"), 0o755))
	again, err := DirTree(dir, 100, 1<<20, sumFile)
	require.NoError(t, err)
	require.Equal(t, digest, again)
	for _, change := range []func() error{
		func() error { return os.Chmod(filepath.Join(dir, "steps/step.yml"), 0o700) },
		func() error { return os.Symlink("nowhere", filepath.Join(dir, "link")) },
		func() error { return os.Mkdir(filepath.Join(dir, "empty"), 0o700) },
		func() error { return os.WriteFile(filepath.Join(dir, "steps/step.yml"), []byte("x"), 0o600) },
	} {
		require.NoError(t, change())
		now, err := DirTree(dir, 100, 1<<20, sumFile)
		require.NoError(t, err)
		require.NotEqual(t, again, now)
		again = now
	}
}

func TestDigestOfADirectoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("1234"), 0o600))
	}
	_, err := DirTree(dir, 2, 8, sumFile)
	require.NoError(t, err)
	_, err = DirTree(dir, 1, 8, sumFile)
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = DirTree(dir, 2, 7, sumFile)
	require.ErrorIs(t, err, ErrTooLarge)
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	_, err = DirTree(dir, 10, 100, sumFile)
	require.ErrorContains(t, err, "fifo is neither a file nor a directory nor a symbolic link")
	_, err = DirTree(filepath.Join(dir, "gone"), 10, 100, sumFile)
	require.ErrorIs(t, err, fs.ErrNotExist)
}
