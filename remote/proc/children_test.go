package proc

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// forkSleep starts a process that ends by a signal only.
func forkSleep(string, []string, *syscall.ProcAttr) (int, error) {
	return syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// Symptom: while a program on a hanging mount was being started, no process of the relay could be ended or reaped.
//
//stepmux:faults executor | A program on a mount that hangs keeps the processes of all other builds from being ended
//stepmux:with remote/proc.TestAChildThatIsReapedBeforeItsStartReturnsHasEnded
func TestAProcessThatHangsInItsExecHoldsUpNoOther(t *testing.T) {
	hung, goOn := make(chan struct{}), make(chan struct{})
	children, err := Adopt(func(program string, argv []string, attr *syscall.ProcAttr) (int, error) {
		if program == "hangs" {
			close(hung)
			<-goOn
		}
		return forkSleep(program, argv, attr)
	})
	require.NoError(t, err)
	defer children.Release()
	other, err := children.Start("sleep", nil, nil)
	require.NoError(t, err)
	started := make(chan error, 1)
	go func() {
		_, err := children.Start("hangs", nil, nil)
		started <- err
	}()
	<-hung
	ended := make(chan struct{})
	go func() {
		children.Signal(other, unix.SIGKILL)
		<-other.Exited()
		third, err := children.Start("sleep", nil, nil)
		if err == nil {
			children.Stop(third, time.Minute)
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(testTimeout): //nolint:forbidigo // the test has failed
		t.Error("held up by the one that hangs")
	}
	close(goOn)
	require.NoError(t, <-started)
	<-ended
	require.Zero(t, children.KillAll())
}

func TestAChildThatIsReapedBeforeItsStartReturnsHasEnded(t *testing.T) {
	r := newReaper()
	for range 2 {
		child, err := r.start(func() (int, error) {
			pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 7"}, &syscall.ProcAttr{
				Env: []string{}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
			})
			require.NoError(t, err)
			require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
			r.collect()
			return pid, nil
		})
		require.NoError(t, err)
		<-child.Exited()
		require.Equal(t, 7, child.Status().ExitStatus())
		r.collect()
		<-child.alone
		require.Empty(t, r.early, "it is claimed")
	}
	_, err := r.start(func() (int, error) { return 0, unix.ENOENT })
	require.ErrorIs(t, err, unix.ENOENT)
}
