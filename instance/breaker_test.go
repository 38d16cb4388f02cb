package instance_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// fill makes the VM's directory for temporary files a small disk of its own without free space: directories can be
// made there, but files have no room. It returns a function that frees the space.
func (v *vm) fill(t *testing.T) (free func()) {
	t.Helper()
	if err := unix.Mount("tmpfs", v.tmp, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(v.tmp, unix.MNT_DETACH)) })
	v.refill(t)
	return func() { require.NoError(t, os.Remove(filepath.Join(v.tmp, "full"))) }
}

// refill takes all free space of a VM's small disk.
func (v *vm) refill(t *testing.T) {
	t.Helper()
	require.ErrorIs(t, os.WriteFile(filepath.Join(v.tmp, "full"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
}

// Symptom: a VM whose step runners started but could not write a script stayed ready. It failed builds faster than the
// others ran them, and so got most of them: 24 of 30 were lost.
//
//stepmux:faults users | A VM that fails jobs before their first command takes builds faster than the others, and fails
//stepmux:more them all
//stepmux:with instance.TestABuildThatNoInstanceBeginsNamesTheReasonOfEach
//stepmux:with instance.TestTheOnlyVMIsQuarantinedAfterSeveralJobsThatItFailedInARow
//stepmux:with instance.TestABuildWhoseProjectHasNoRoomGoesElsewhere
//stepmux:with instance/manager.TestABuildThatItsVMDoesNotBeginRunsOnAnother
//stepmux:reliability promises | A VM that fails jobs before their first command loses no build, and none runs twice
//stepmux:with instance/manager.TestABuildThatItsVMDoesNotBeginRunsOnAnother
func TestAVMThatFailsJobsBeforeTheirFirstCommandLosesNoBuild(t *testing.T) {
	t.Parallel()
	full, works := newVM(t, sshtest.OpenSSH(t)), newVM(t, sshtest.OpenSSH(t))
	free := full.fill(t)
	p := providerOf(t, instance.Config{}, 4, full, works)
	ran := filepath.Join(t.TempDir(), "ran")
	reports := runAll(t, p, 30, "echo x >>"+ran)
	requireSuccess(t, reports)
	for _, r := range reports {
		require.Equal(t, "vm-2", r.Instance)
		require.Empty(t, r.Left)
	}
	text, err := os.ReadFile(ran)
	require.NoError(t, err)
	require.Len(t, text, 2*30, "each build ran once")
	stat := statOf(p, "vm-1")
	require.NotEqual(t, instance.Ready, stat.State)
	require.Contains(t, stat.Reason, "no space left on device (free space or inodes on the file system of "+full.tmp)
	require.NotContains(t, stat.Reason, "/proc/self/fd")

	free()
	for within := sshtest.Within(t); statOf(p, "vm-1").State != instance.Ready; {
		require.NoError(t, within.Err(), "it comes back: %+v", statOf(p, "vm-1"))
		requireSuccess(t, runAll(t, p, 8, "true")) // one of them is the probe, once the quarantine has ended
	}
	full.requireClean(t)
}

// A build tries few instances, and then names the reason of each. The last one keeps its builds, until it has failed
// several in a row.
func TestABuildThatNoInstanceBeginsNamesTheReasonOfEach(t *testing.T) {
	t.Parallel()
	var vms []*vm
	for range 4 {
		v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
		v.fill(t)
		vms = append(vms, v)
	}
	p := providerOf(t, instance.Config{}, 1, vms...)
	reports := runAll(t, p, 1, "true")
	requireReason(t, reports[0].Err, instance.RunnerSystemFailure, 0)
	require.False(t, reports[0].Err.Elsewhere)
	for _, id := range []string{"vm-1", "vm-2", "vm-3"} {
		require.ErrorContains(t, reports[0].Err, "instance "+id+": step ")
	}
	require.NotContains(t, reports[0].Err.Error(), "vm-4")
	require.Equal(t, instance.Ready, statOf(p, "vm-4").State, "it was not tried")
	require.Empty(t, reports[0].Left)
}

// Symptom: the only VM failed all builds of a queue within a second.
func TestTheOnlyVMIsQuarantinedAfterSeveralJobsThatItFailedInARow(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	free := v.fill(t)
	p := providerOf(t, instance.Config{}, 1, v)
	fails := func(id string) {
		t.Helper()
		err := build(sshtest.Within(t), p, id, script("true"), &sshtest.Log{})
		requireReason(t, err, instance.RunnerSystemFailure, 0)
	}
	fails("b1")
	fails("b2")
	free()
	err := build(sshtest.Within(t), p, "b3", script("exit 3"), &sshtest.Log{})
	requireReason(t, err, instance.ScriptFailure, 3)
	v.refill(t)
	fails("b4")
	fails("b5")
	require.Equal(t, instance.Ready, statOf(p, "vm-1").State, "a job of which the script failed is between them")
	fails("b6")
	require.Equal(t, instance.Quarantined, statOf(p, "vm-1").State)
	require.Contains(t, statOf(p, "vm-1").Reason, "no space left on device")
	require.NoError(t, os.Remove(filepath.Join(v.tmp, "full")))
	require.NoError(t, build(sshtest.Within(t), p, "b7", script("true"), &sshtest.Log{}), "it waits, and is the probe")
	require.Equal(t, instance.Ready, statOf(p, "vm-1").State)
}

// A project that finds no room on one VM is brought to another.
func TestABuildWhoseProjectHasNoRoomGoesElsewhere(t *testing.T) {
	t.Parallel()
	full := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	works := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	full.fill(t)
	p := providerOf(t, instance.Config{}, 1, full, works)
	job := script("cat a")
	job.Project = packed(t, "a", "content")
	var log sshtest.Log
	e := p.Executor(instance.Build{ID: "b", Log: &log})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	_, err := e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, "vm-1", e.Instance())
	err = e.Execute(sshtest.Within(t), job)
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "bring the project to the VM: ")
	require.ErrorContains(t, err, "no space left on device")
	_, err = e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, "vm-2", e.Instance())
	require.NoError(t, e.Execute(sshtest.Within(t), job))
	require.Equal(t, "content", log.String())
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.Equal(t, instance.Ready, statOf(p, "vm-1").State, "the project may be too large")
}

// packed returns a project of one file.
func packed(t *testing.T, name, content string) *files.Project {
	t.Helper()
	var text bytes.Buffer
	z, err := zstd.NewWriter(&text)
	require.NoError(t, err)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o640, Size: int64(len(content))}))
	_, err = io.WriteString(w, content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	sum := sha256.Sum256(text.Bytes())
	return &files.Project{
		Digest: hex.EncodeToString(sum[:]), Size: int64(text.Len()),
		Open: func(context.Context) (io.ReadSeekCloser, error) {
			return opened{bytes.NewReader(text.Bytes())}, nil
		},
	}
}

type opened struct{ *bytes.Reader }

func (opened) Close() error { return nil }
