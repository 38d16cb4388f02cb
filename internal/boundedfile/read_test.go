package boundedfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

func TestReadTakesRegularFilesOfABoundedSize(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("12345"), 0o600))
	got, err := boundedfile.Read(file, 5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(got))
	_, err = boundedfile.Read(file, 4)
	require.ErrorIs(t, err, boundedfile.ErrTooLarge)
	require.ErrorContains(t, err, file)

	_, err = boundedfile.Read(dir, 5)
	require.ErrorContains(t, err, "is a directory: name a file")
	_, err = boundedfile.Read(filepath.Join(dir, "none"), 5)
	require.ErrorIs(t, err, os.ErrNotExist)
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err = boundedfile.Read(pipe, 5)
	require.ErrorContains(t, err, "is not a regular file")
	got, err = boundedfile.Read(os.DevNull, 5)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestDigestsAreOfRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("abc"), 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	got, err := boundedfile.SHA256(root.OpenFile, "file")
	require.NoError(t, err)
	require.Equal(t, abc, got)
	got, err = boundedfile.SHA256(os.OpenFile, filepath.Join(dir, "file"))
	require.NoError(t, err)
	require.Equal(t, abc, got)
	for _, name := range []string{"fifo", "."} {
		_, err = boundedfile.SHA256(root.OpenFile, name)
		require.ErrorContains(t, err, "is not a regular file")
	}
	_, err = boundedfile.SHA256(root.OpenFile, "missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
