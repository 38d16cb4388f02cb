package pipe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

func TestLeashEndsTheContextWhenStdinEnds(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			in, manager := remotetest.BlockingPair(t, kind)
			ctx, stop, err := Leash(t.Context(), in)
			require.NoError(t, err)
			_, err = manager.WriteString(remotetest.Repeat(1 << 20)) // more than fits: it is being discarded
			require.NoError(t, err)
			require.NoError(t, ctx.Err(), "bytes are no end")
			require.NoError(t, manager.Close())
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), ErrLeash)
			stop()
			require.False(t, remotetest.Nonblocking(t, in), "the mode was not restored")
		})
	}
}

func TestLeashStopWakesTheReaderAndLeavesStdinOpen(t *testing.T) {
	for _, kind := range []string{"pipe", "socket"} {
		t.Run(kind, func(t *testing.T) {
			in, manager := remotetest.BlockingPair(t, kind)
			ctx, stop, err := Leash(t.Context(), in)
			require.NoError(t, err)
			stop()
			require.ErrorIs(t, context.Cause(ctx), context.Canceled)
			require.False(t, remotetest.Nonblocking(t, in))
			_, err = manager.WriteString("x")
			require.NoError(t, err)
			n, err := in.Read(make([]byte, 8))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		})
	}
}

func TestLeashPassesOnTheCauseOfItsParent(t *testing.T) {
	in, _ := remotetest.BlockingPair(t, "pipe")
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop, err := Leash(parent, in)
	require.NoError(t, err)
	defer stop()
	because := errors.New("SIGTERM")
	cancel(because)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), because)
}

func TestDaemonHasNoLeash(t *testing.T) {
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
		ctx, stop, err := Leash(t.Context(), in)
		require.NoError(t, err, name)
		require.NoError(t, ctx.Err(), name)
		stop()
	}
}
