package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestALockIsHeldByOneOpeningAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	first, err := Claim(path)
	require.NoError(t, err)
	_, err = Claim(path)
	require.ErrorIs(t, err, ErrTaken)
	other, err := os.Open(path)
	require.NoError(t, err)
	defer other.Close()
	require.ErrorIs(t, Try(other), ErrTaken)
	Release(first)
	require.NoError(t, Try(other))
	Unlock(other)
	again, err := Claim(path)
	require.NoError(t, err)
	Release(again)
}

func TestAReaderOfAFileCannotKeepOutOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	hostile, err := Claim(path)
	require.NoError(t, err)
	defer hostile.Close()
	require.ErrorIs(t, TryWrite(hostile), unix.EBADF)
	first, err := ClaimWrite(path)
	require.NoError(t, err)
	_, err = ClaimWrite(path)
	require.ErrorIs(t, err, ErrTaken)
	reader, err := os.Open(path)
	require.NoError(t, err)
	defer reader.Close()
	require.ErrorIs(t, TryRead(reader), ErrTaken)
	require.False(t, IsRead(reader))
	Unlock(first)
	require.False(t, IsRead(first))
	require.NoError(t, TryRead(hostile))
	require.NoError(t, TryRead(reader))
	require.ErrorIs(t, TryWrite(first), ErrTaken)
	require.True(t, IsRead(first))
	Unlock(hostile)
	Unlock(reader)
	require.NoError(t, TryWrite(first))
	Release(first)
}

func TestClaimTakesNoFileThatIsGoneOrALink(t *testing.T) {
	dir := t.TempDir()
	_, err := Claim(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, ErrTaken)
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	_, err = Claim(filepath.Join(dir, "link"))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrTaken)
	claimed, err := Claim(dir)
	require.NoError(t, err)
	defer Release(claimed)
	require.True(t, StillAt(claimed, dir))
	require.False(t, StillAt(claimed, filepath.Dir(dir)))
	require.False(t, StillAt(claimed, filepath.Join(dir, "missing")))
}

func TestWaitGetsTheLockOnceItIsFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	first, err := Claim(path)
	require.NoError(t, err)
	other, err := os.Open(path)
	require.NoError(t, err)
	defer other.Close()
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	require.ErrorIs(t, Wait(ctx, other), because)
	time.AfterFunc(5*time.Millisecond, func() { Release(first) })
	require.NoError(t, Wait(t.Context(), other))
}
