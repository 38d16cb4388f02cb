package proc

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// trace attaches to a process, which then does not end before free is called.
func trace(t *testing.T, pid int) (free func()) {
	t.Helper()
	attached, freed, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for good: the thread is the tracer
		attached <- unix.PtraceSeize(pid)
		<-freed
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}()
	free = func() {
		close(freed)
		<-ended
	}
	if err := <-attached; err != nil {
		free()
		t.Skip("part missing: ptrace: ", err)
	}
	return free
}

// requireGivenUp checks that the end of the init is not waited for any more, although it has not ended.
func requireGivenUp(t *testing.T, l *link, p *Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	select {
	case <-l.gone:
	case <-ctx.Done():
		require.FailNow(t, "its end is waited for")
	}
	require.Error(t, p.Close())
}

// Symptom: with isolation, a process that the kernel could not end held up the end of its step runner for good.
func TestAnInitThatDoesNotEndIsGivenUp(t *testing.T) {
	in := &Init{Room: isolate.Spec{Level: vmconfig.Processes, Dir: t.TempDir()}}
	in.Prepare()
	t.Cleanup(func() { in.Close() })
	if level, why := in.Isolation(t.Context()); level != vmconfig.Processes {
		t.Skip("part missing: namespaces: ", why)
	}
	l, tag := in.init(t), newTag()
	c := shell("exec sleep 1000")
	c.Env = append(c.Env, tag)
	p, err := in.Start(t.Context(), c)
	require.NoError(t, err)
	var pids []int
	// A process in the midst of its exec has no environment.
	eventually(t, func() bool { pids = tagged(t, tag); return len(pids) == 1 }, "the command")
	defer trace(t, pids[0])()
	require.NoError(t, l.init.Kill())
	requireGivenUp(t, l, p)
	require.ErrorIs(t, in.Close(), errUnkillable)
}

// Symptom: so did a program that was being started from a file system that did not answer.
func TestAnInitWhoseChannelStaysOpenIsGivenUp(t *testing.T) {
	in := newInit(t)
	l := in.init(t)
	p, err := in.Start(t.Context(), shell("sleep 1000"))
	require.NoError(t, err)
	pidfd, err := unix.PidfdOpen(l.init.Pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd) //nolint:errcheck // only this test has it
	held, err := unix.PidfdGetfd(pidfd, controlFD, 0)
	if err != nil {
		t.Skip("part missing: pidfd_getfd: ", err) // root only
	}
	defer unix.Close(held) //nolint:errcheck // as above
	l.abandon()
	requireGivenUp(t, l, p)
}
