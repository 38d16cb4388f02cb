package job

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallDisk returns a directory on a file system of its own with room for little.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestFullDiskFailsTheJobThatMeetsIt(t *testing.T) {
	dir := smallDisk(t)
	s := newStore(t, Config{Dir: dir})
	stat, _ := run(t, s, script(t, "loud", "head -c 1000000 /dev/zero; echo end >&2"))
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "the job's stdout is not complete")
	require.Contains(t, stat.Message, "no space left on device")
	require.Positive(t, stat.Stdout)
	f := follow(t, s, "loud")
	require.Len(t, read(t, f, Stdout, 0), int(stat.Stdout), "what there is can be read")

	// With nothing left not even the script can be written.
	stat, _ = run(t, s, script(t, "next", "echo hi"))
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "no space left on device")

	// Once the loud job is forgotten there is room again.
	f.Close()
	for _, id := range []string{"loud", "next"} {
		s.Cancel(id, false)
	}
	stat, _ = run(t, s, script(t, "last", "echo hi"))
	require.Equal(t, Succeeded, stat.State, stat.Message)
}
