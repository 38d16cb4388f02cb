package proc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestKillAllGoesOnWhileChildrenCannotBeListed(t *testing.T) {
	r := newReaper()
	for _, pid := range ListChildren() {
		r.before[pid] = true
	}
	all := func(pid int) bool { return !r.before[pid] }
	child, err := r.start(func() (int, error) { return forkSleep("", nil, nil) })
	require.NoError(t, err)

	var files unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: files.Max}))
	left := r.killOnce(all)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &files))

	require.NotZero(t, left)
	giveUp := time.NewTimer(10 * time.Second)
	defer giveUp.Stop()
	require.Zero(t, r.killAll(giveUp.C, all))
	require.True(t, child.Status().Signaled())
}
