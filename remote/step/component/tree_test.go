package component

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func sumFile(string, fs.FileInfo) (string, error) { return "", nil }

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
