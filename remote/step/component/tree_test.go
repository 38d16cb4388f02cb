package component

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

func TestNodeOfALinkHasItsTarget(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, root.Mkdir("dir", 0o700))
	target := strings.Repeat("long/", 200)
	require.NoError(t, root.Symlink(target, "dir/link"))
	info, err := root.Lstat("dir/link")
	require.NoError(t, err)
	n, err := NodeOf(root, "dir/link", info, sumFile)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(target))
	require.Equal(t, Node{"dir/link", ModeSymlink, hex.EncodeToString(sum[:]), int64(len(target))}, n)
}
