package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	require.ErrorIs(t, TryShared(other), ErrTaken)
	require.NoError(t, TryShared(first))
	require.NoError(t, TryShared(other))
	require.ErrorIs(t, Try(other), ErrTaken)
	Release(first)
	require.NoError(t, Try(other))
	Unlock(other)
	again, err := Claim(path)
	require.NoError(t, err)
	Release(again)
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
