package proc

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// fewNamespacesVar marks a test's process in a user namespace of its own, where it can set limits.
const fewNamespacesVar = "STEPMUX_TEST_FEW_NAMESPACES"

// Symptom: an isolated build could use up the namespaces of the machine, and the next build had no isolation.
func TestAutoKeepsTheIsolationOnAMachineThatHasRunOutOfNamespaces(t *testing.T) {
	if os.Getenv(fewNamespacesVar) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), fewNamespacesVar+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		t.Log(string(out))
		if err != nil && len(out) == 0 {
			t.Skip("part missing: user namespaces: ", err)
		}
		require.NoError(t, err)
		return
	}
	limit := func(n string) {
		require.NoError(t, os.WriteFile("/proc/sys/user/max_pid_namespaces", []byte(n), 0))
	}
	newInit := func(level vmconfig.Level) *Init {
		in := &Init{Room: isolate.Spec{Level: level, Dir: t.TempDir()}}
		t.Cleanup(func() { in.Close() })
		in.Prepare()
		return in
	}
	limit("1")
	first := newInit(vmconfig.Processes)
	if _, err := first.Isolation(t.Context()); err != nil {
		t.Skip("part missing: namespaces: ", err)
	}
	_, err := newInit(vmconfig.Auto).Start(t.Context(), shell("exit"))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.True(t, MachineFailed(err))

	limit("0")
	closed := newInit(vmconfig.Auto)
	level, why := closed.Isolation(t.Context())
	require.Equal(t, vmconfig.Off, level)
	require.ErrorIs(t, why, unix.ENOSPC)
}
