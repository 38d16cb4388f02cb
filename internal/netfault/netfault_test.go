package netfault_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/netfault"
)

// A disk may be full before any file and directory that git init makes. Its messages differ.
func TestAFullDiskIsNoFaultOfTheRequest(t *testing.T) {
	for inodes := 2; inodes <= 8; inodes++ {
		full := t.TempDir()
		if err := unix.Mount("tmpfs", full, "tmpfs", 0, fmt.Sprintf("size=4k,nr_inodes=%d", inodes)); err != nil {
			t.Skipf("part missing: the right to mount: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(full, unix.MNT_DETACH)) })
		git := exec.CommandContext(t.Context(), "git", "init", "--quiet", full)
		git.Env = append(os.Environ(), "LC_ALL=C")
		out, err := git.CombinedOutput()
		require.Error(t, err)
		is, server := netfault.OfGit(string(out), err)
		require.True(t, is, "%d: %s", inodes, out)
		require.False(t, server)
	}
}

func TestALineOfAServerIsNoFaultOfThisMachine(t *testing.T) {
	for _, line := range []string{
		"remote: /tmp/w/.git: No space left on device", "/tmp/w: No space left on device", "w/.git: Permission denied",
		"/tmp/w/.git: no reference", "/tmp/w/.github: No space left on device", ": No space left on device", "",
	} {
		is, server := netfault.OfGit(line, exec.ErrNotFound)
		require.False(t, is, line)
		require.False(t, server, line)
	}
	is, server := netfault.OfGit("/tmp/w/.git/refs: Disk quota exceeded\n", exec.ErrNotFound)
	require.True(t, is)
	require.False(t, server)
}
