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
