package filesum_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/filesum"
)

func TestDigestsAreOfRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("abc"), 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	got, err := filesum.SHA256(root.OpenFile, "file")
	require.NoError(t, err)
	require.Equal(t, abc, got)
	got, err = filesum.SHA256(os.OpenFile, filepath.Join(dir, "file"))
	require.NoError(t, err)
	require.Equal(t, abc, got)
	for _, name := range []string{"fifo", "."} {
		_, err = filesum.SHA256(root.OpenFile, name)
		require.ErrorContains(t, err, "is not a regular file")
	}
	_, err = filesum.SHA256(root.OpenFile, "missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
