package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/filelock"
)

func TestALeftoverIsDescribedWithWhoHasItLocked(t *testing.T) {
	dir := t.TempDir()
	lock, err := filelock.Claim(dir)
	require.NoError(t, err)
	require.Regexp(t, fmt.Sprintf(`^\Q%s\E \(drwx.*, changed .* ago, locked by process %d\)$`, dir, os.Getpid()),
		describe(dir))
	filelock.Release(lock)
	require.Regexp(t, ` ago\)$`, describe(dir))
	require.Contains(t, describe(filepath.Join(dir, "missing")), "gone now")
}
