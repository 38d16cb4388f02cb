package privatefile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/privatefile"
)

func TestOpenMakesAFileOnceThatOnlyItsOwnerCanRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	made := 0
	for range 2 {
		text, err := privatefile.Open(name, 4, func() ([]byte, error) {
			made++
			return []byte("text"), nil
		})
		require.NoError(t, err)
		require.Equal(t, "text", string(text))
	}
	require.Equal(t, 1, made)
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	require.ErrorIs(t, privatefile.Create(name, nil), fs.ErrExist)
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing else is left")
}

func TestReadRefusesFilesThatAreNotPrivate(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	_, err := privatefile.Read(name, 3)
	require.ErrorContains(t, err, "larger than 3 bytes")
	require.NoError(t, os.Chmod(name, 0o640))
	_, err = privatefile.Read(name, 4)
	require.ErrorContains(t, err, "can be read by others (mode 0640)")
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, other := range []string{dir, filepath.Join(dir, "pipe")} {
		_, err = privatefile.Read(other, 4)
		require.ErrorContains(t, err, "is not a regular file")
	}
}
