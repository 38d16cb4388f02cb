package manager_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: a VM without free space in its directory for temporary files failed most of a queue's builds.
func TestABuildThatItsVMDoesNotBeginRunsOnAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.more = sshtest.InProcess(t, embeddedvm.Config{})
	full := sshtest.SocketDir(t)
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(full, unix.MNT_DETACH)) })
	require.ErrorIs(t, os.WriteFile(filepath.Join(full, "full"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
	f.provide = func(cfg *instance.Config) {
		vms := cfg.Group.Instances()
		vms[0].TempDir = full
		require.NoError(t, cfg.Group.Update(vms))
	}
	m := f.start(t)
	var ids []string
	ran := filepath.Join(t.TempDir(), "ran")
	for range 6 {
		ids = append(ids, m.submit("echo x >>"+ran+"; echo done"))
	}
	for _, id := range ids {
		text, b := m.wait(id, 0)
		require.Equal(t, "done\n", text)
		require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
		require.Empty(t, b.GetResult().GetLeft())
		require.Equal(t, "vm-2", b.GetInstance())
	}
	text, err := os.ReadFile(ran)
	require.NoError(t, err)
	require.Len(t, text, 2*len(ids), "each ran once")
}
