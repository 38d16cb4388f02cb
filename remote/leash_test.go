package remote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// nonblocking reports the mode of the open file behind f.
func nonblocking(t *testing.T, f *os.File) bool {
	t.Helper()
	rc, err := f.SyscallConn()
	require.NoError(t, err)
	var flags int
	require.NoError(t, rc.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) }))
	require.NoError(t, err)
	return flags&unix.O_NONBLOCK != 0
}

// blockingPair returns two connected ends in blocking mode, as a process finds its stdio.
func blockingPair(t *testing.T, kind string) (near, far *os.File) {
	t.Helper()
	var fds [2]int
	if kind == "socket" {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		fds = pair
	} else {
		require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	}
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

func TestLeashEndsTheContextWhenStdinEnds(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			in, manager := blockingPair(t, kind)
			ctx, stop, err := leash(t.Context(), in)
			require.NoError(t, err)
			_, err = manager.WriteString(repeat(1 << 20)) // more than fits: it is being discarded
			require.NoError(t, err)
			require.NoError(t, ctx.Err(), "bytes are no end")
			require.NoError(t, manager.Close())
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), errLeash)
			stop()
			require.False(t, nonblocking(t, in), "the mode was not restored")
		})
	}
}

func TestLeashStopWakesTheReaderAndLeavesStdinOpen(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			in, manager := blockingPair(t, kind)
			ctx, stop, err := leash(t.Context(), in)
			require.NoError(t, err)
			stop()
			require.ErrorIs(t, context.Cause(ctx), context.Canceled)
			require.False(t, nonblocking(t, in))
			_, err = manager.WriteString("x")
			require.NoError(t, err)
			n, err := in.Read(make([]byte, 8))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		})
	}
}

func TestLeashPassesOnTheCauseOfItsParent(t *testing.T) {
	in, _ := blockingPair(t, "pipe")
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop, err := leash(parent, in)
	require.NoError(t, err)
	defer stop()
	because := errors.New("SIGTERM")
	cancel(because)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), because)
}

func TestLeashOfADaemonIsNone(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	path := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	closed, err := os.Open(os.DevNull)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	files := map[string]*os.File{"/dev/null": null, "an empty file": file, "a closed file": closed, "none": nil}
	if tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err == nil {
		defer tty.Close()
		files["a terminal"] = tty
	}
	for name, in := range files {
		require.False(t, isLeash(in), name)
		ctx, stop, err := leash(t.Context(), in)
		require.NoError(t, err, name)
		require.NoError(t, ctx.Err(), name)
		stop()
	}
}
