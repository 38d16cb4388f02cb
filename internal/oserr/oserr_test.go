package oserr

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestBareLeavesTheCauseOnly(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, openErr := os.Open(missing)
	call := os.NewSyscallError("wait", unix.ENOENT)
	for _, err := range []error{openErr, call, os.Rename(missing, missing+"2")} {
		require.EqualError(t, Bare(err), "no such file or directory")
		require.ErrorIs(t, Bare(err), os.ErrNotExist)
	}
	other := fmt.Errorf("get https://example.com: %w", call)
	require.Equal(t, other, Bare(other))
	require.NoError(t, Bare(nil))
}

func TestHintSaysHowToHelp(t *testing.T) {
	for cause, want := range map[error]string{
		unix.ENOSPC: "free space or inodes on the file system of /d",
		unix.EDQUOT: "free space or inodes on the file system of /d",
		unix.EROFS:  "make /d writable",
		unix.EACCES: "must be able to write in /d",
		unix.EMFILE: "raise ulimit -n",
		unix.ENFILE: "raise fs.file-max",
	} {
		err := Hint(fmt.Errorf("make it: %w", cause), "/d")
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, unix.EIO, Hint(unix.EIO, "/d"))
	require.NoError(t, Hint(nil, "/d"))
}
