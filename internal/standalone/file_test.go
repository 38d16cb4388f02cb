package standalone

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestReportIsWrittenForOurUserOnlyAndReplacesAnOlderFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, Refused(errors.New("all of it is wrong")).WriteFile(path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, "stepmux-result/v1", got["schema"])
	require.Equal(t, "invalid", got["reason"])
	require.Equal(t, "all of it is wrong", got["message"])
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestReportReplacesNothingThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		dir:                                "it is a directory",
		fifo:                               "not a regular file",
		"/dev/null":                        "not a regular file",
		filepath.Join(dir, "missing", "f"): "no such file or directory",
		filepath.Join(fifo, "f"):           "write " + filepath.Join(fifo, "f") + ": not a directory",
	} {
		require.ErrorContains(t, CheckOutputFile(path), want)
		require.ErrorContains(t, Refused(errors.New("")).WriteFile(path), want)
	}
	info, err := os.Lstat(fifo)
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		dir:         "is a directory; name a file in it",
		fifo:        "it is not a regular file; to read a pipe use -",
		"/dev/zero": "it is not a regular file; to read a pipe use -",
	} {
		_, err := ReadFile(path, nil)
		require.ErrorContains(t, err, want)
	}
	text, err := ReadFile("-", strings.NewReader(strings.Repeat("x", 3*lang.MaxText)))
	require.NoError(t, err)
	require.Len(t, text, lang.MaxText+1)
}
