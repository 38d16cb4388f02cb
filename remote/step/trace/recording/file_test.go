package recording

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFileIsCompleteOrMissing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.json")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	read := func() string {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(data)
	}
	f, err := Create(path, 1<<20)
	require.NoError(t, err)
	_, err = f.Write([]byte("new"))
	require.NoError(t, err)
	require.Equal(t, "old", read())
	require.NoError(t, f.Commit())
	require.Equal(t, "new", read())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.LessOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks, int64(16), "what was reserved is given back")

	f.Discard()
	require.ErrorIs(t, f.Commit(), os.ErrClosed)
	require.Equal(t, "new", read())

	f, err = Create(path, 0)
	require.NoError(t, err)
	f.Discard()
	f.Discard()
	_, err = f.Write(nil)
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, f.Reserve(1))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// Symptom: a file with a name of the maximal length could not be written, because its temporary name was longer.
func TestFileCanHaveTheLongestName(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("x", 255))
	f, err := Create(path, 0)
	require.NoError(t, err)
	require.NoError(t, f.Commit())
	require.FileExists(t, path)
}

func TestFileRefusesAPathThatIsNotARegularFile(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                             "it is a directory",
		"/dev/null":                     "something that is not a regular file",
		filepath.Join(dir, "gone", "x"): "no such file or directory",
	} {
		_, err := Create(path, 0)
		require.ErrorContains(t, err, "write "+path)
		require.ErrorContains(t, err, want)
	}
}

// smallDisk returns a directory on a disk of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("part missing: only root can mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("stepmux-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill fills the disk that dir is on.
func fill(t *testing.T, dir string) {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	defer file.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(block)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
}

func TestReservedRoomSurvivesAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "trace.json")
	f, err := Create(path, 64<<10)
	require.NoError(t, err)
	require.NoError(t, f.Reserve(128<<10))
	fill(t, dir)
	require.ErrorIs(t, f.Reserve(256<<10), unix.ENOSPC)
	data := bytes.Repeat([]byte("x"), 128<<10)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Commit())
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, data, got)
}

func TestTraceThatDoesNotFitLeavesNoFile(t *testing.T) {
	dir := smallDisk(t)
	_, err := Create(filepath.Join(dir, "a"), 2<<20)
	require.ErrorIs(t, err, unix.ENOSPC)
	f, err := Create(filepath.Join(dir, "b"), 4096)
	require.NoError(t, err)
	fill(t, dir)
	_, err = f.Write(make([]byte, 64<<10))
	require.ErrorIs(t, err, unix.ENOSPC)
	f.Discard()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "the filler")
}

// A job could put another file under the temporary name, which was read and sent as the trace.
func TestFileWithoutANameIsNotInItsDirectory(t *testing.T) {
	path := t.TempDir()
	dir, err := os.Open(path)
	require.NoError(t, err)
	defer dir.Close()
	f, err := CreateNameless(dir, 4096)
	require.NoError(t, err)
	left, err := os.ReadDir(path)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = f.Write([]byte("trace"))
	require.NoError(t, err)
	require.NoError(t, f.Commit())
	for range 2 {
		file, err := f.Open()
		require.NoError(t, err)
		data, err := io.ReadAll(file)
		require.NoError(t, err)
		require.Equal(t, "trace", string(data))
		require.NoError(t, file.Close())
	}
	f.Discard()
	f.Discard()
	_, err = f.Open()
	require.ErrorContains(t, err, "closed")
}
