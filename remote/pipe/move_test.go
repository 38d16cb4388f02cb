package pipe_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/pipe"
)

// socketPair returns two ends of a socket, in non-blocking mode.
func socketPair(t *testing.T) (near, far *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

// opened returns f as a File, closed at the end of the test.
func opened(t *testing.T, f *os.File) *pipe.File {
	t.Helper()
	opened, err := pipe.Open(f)
	require.NoError(t, err)
	t.Cleanup(opened.Close)
	return opened
}

// move calls Move with the descriptor of from.
func move(t *testing.T, to *pipe.File, from *os.File, n int) (moved int, err error) {
	t.Helper()
	rc, rcErr := from.SyscallConn()
	require.NoError(t, rcErr)
	require.NoError(t, rc.Control(func(fd uintptr) {
		require.GreaterOrEqual(t, pipe.Waiting(fd), n)
		moved, err = to.Move(fd, n)
	}))
	return moved, err
}

// smallPipe returns a pipe that holds one page.
func smallPipe(t *testing.T) (from, to *os.File) {
	t.Helper()
	from, to, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		from.Close()
		to.Close()
	})
	_, err = unix.FcntlInt(to.Fd(), unix.F_SETPIPE_SZ, 4<<10)
	require.NoError(t, err)
	return from, to
}

func TestMoveWaitsForThePipeAndMovesExactlyTheBytesAsked(t *testing.T) {
	near, far := socketPair(t)
	from, to := smallPipe(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	_, err := near.Write(data)
	require.NoError(t, err)
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(from)
		got <- all
	}()
	const n = 60_000
	out := opened(t, to)
	moved, err := move(t, out, far, n)
	require.NoError(t, err)
	require.Equal(t, n, moved)
	out.Close()
	to.Close()
	require.True(t, bytes.Equal(data[:n], <-got))
	rest := make([]byte, len(data)-n)
	_, err = io.ReadFull(far, rest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data[n:], rest))
}

func TestCloseWakesAMoveThatWaitsForThePipe(t *testing.T) {
	near, far := socketPair(t)
	from, to := smallPipe(t)
	out := opened(t, to)
	const n = 64 << 10
	_, err := near.Write(make([]byte, n))
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		_, err := move(t, out, far, n)
		ended <- err
	}()
	_, err = io.ReadFull(from, make([]byte, 1)) // it moves
	require.NoError(t, err)
	out.Close()
	require.ErrorIs(t, <-ended, os.ErrClosed)
}

func TestMoveSaysThatOnlyPipesTakeBytesWithoutACopy(t *testing.T) {
	near, far := socketPair(t)
	other, _ := socketPair(t)
	_, err := near.Write([]byte("bytes"))
	require.NoError(t, err)
	moved, err := move(t, opened(t, other), far, 5)
	require.True(t, errors.Is(err, errors.ErrUnsupported), "%v", err)
	require.Zero(t, moved)
	require.False(t, opened(t, other).Widen(), "it is no pipe")
}
