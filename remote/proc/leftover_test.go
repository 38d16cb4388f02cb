package proc

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// awaitStopped waits until process pid is stopped.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	eventually(t, func() bool {
		p, err := ReadInfo(pid)
		return err == nil && p.Stopped
	}, "it does not stop")
}

func TestStoppedCommandGetsItsSIGTERM(t *testing.T) {
	// Symptom: a command that was stopped sat out its grace and could not clean up.
	out := newLines(t)
	c := shell(`trap 'exit 3' TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done`)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	awaitStopped(t, p.PID())
	p.Stop(2 * testTimeout)
	require.Equal(t, 3, wait(t, p).Code)
}

func TestStoppedInitEndsItsCommand(t *testing.T) {
	// Symptom: a init that was stopped held up the end for 10 s, and was then killed.
	tag := newTag()
	out := newLines(t)
	c := shell(leaveThings)
	c.Env, c.Stdout = append(c.Env, tag), out
	p := start(t, c)
	out.want(t, "ready")
	require.NoError(t, p.link.init.Signal(unix.SIGSTOP))
	awaitStopped(t, p.link.init.Pid)
	require.NoError(t, p.Close())
	require.Empty(t, tagged(t, tag))
}

//stepmux:faults service | The clean-up for dead builds ends a living one
//stepmux:with remote/proc.TestOnlyACertainEndIsDeath, remote.TestEndTouchesOnlyServesAndReportsTheDirectory
func TestOrphansOfAKilledServerAreKilled(t *testing.T) {
	// Symptom: a job killed serve and its inits at once, and its daemon lived on.
	const daemon = `setsid sh -c 'trap "" TERM HUP; while :; do sleep 1000; done' & echo ready; wait`
	livingTag, deadTag := newTag(), newTag()
	livingDir, _ := orphanTree(t)
	deadDir, _ := orphanTree(t)
	living, livingInits := server(t, daemon, livingTag, livingDir)
	defer func() {
		_ = living.Process.Kill() // it runs
		eventually(t, func() bool { return allEnded(livingInits) }, "the inits of the living server")
	}()
	dead, inits := server(t, daemon, deadTag, deadDir)
	for _, pid := range inits {
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP)) // so that none of them acts
	}
	require.NoError(t, dead.Process.Kill())
	_ = dead.Wait() // it was killed
	for _, pid := range inits {
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	eventually(t, func() bool { return allEnded(inits) }, "its inits")
	before := tagged(t, livingTag)

	// Another test's relay may have killed them before.
	require.Empty(t, KillOrphans(t.Context()))
	require.Empty(t, tagged(t, deadTag))
	eventually(t, func() bool { // those in the midst of their exec have no environment
		now := tagged(t, livingTag)
		return !slices.ContainsFunc(before, func(pid int) bool { return !slices.Contains(now, pid) })
	}, "the processes of the living server, of which more may begin")
	require.False(t, ended(living.Process.Pid))
}

func TestStoppedInitsOfAKilledServerCleanUp(t *testing.T) {
	// Symptom: inits that were stopped kept the directory and the processes of their dead server.
	tag := newTag()
	dir, keep := orphanTree(t)
	cmd, inits := server(t, leaveThings, tag, dir)
	for _, pid := range inits {
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
		awaitStopped(t, pid)
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.Empty(t, KillOrphans(t.Context()))
	eventually(t, func() bool { return len(tagged(t, tag)) == 0 && allEnded(inits) }, "its processes")
	requireRemoved(t, dir, keep)
}

func TestOnlyACertainEndIsDeath(t *testing.T) {
	us := self()
	require.False(t, us.dead())

	other := us
	other.start++
	require.True(t, other.dead(), "another process has the number now")

	elsewhere := other
	elsewhere.space = "1.1"
	require.False(t, elsewhere.dead(), "its namespace is another one")

	cmd := exec.Command("true")
	require.NoError(t, cmd.Start())
	p, err := ReadInfo(cmd.Process.Pid)
	require.NoError(t, err)
	child := identity{space: us.space, pid: p.PID, start: p.start}
	eventually(t, child.dead, "it has ended, and nobody has reaped it")
	require.NoError(t, cmd.Wait())
	require.True(t, child.dead())
}

func TestIdentityRoundTrips(t *testing.T) {
	us := self()
	require.Equal(t, os.Getpid(), us.pid)
	back, ok := parseIdentity(us.String())
	require.True(t, ok)
	require.Equal(t, us, back)
	for _, bad := range []string{
		"", "a", "a:1:2", "a:-5:2", "a:x:2", "a:5:-2", ":5:2", "a:5:2:3", "a:5:" + strconv.Itoa(1<<62) + "0",
	} {
		_, ok := parseIdentity(bad)
		require.False(t, ok, bad)
	}
}
