package timerslack

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// slack returns that of this thread.
func slack(t *testing.T) int {
	t.Helper()
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	require.NoError(t, err)
	return n
}

func TestCommandsGetTheSlackThatTheUserHasChosenAndNeverOurs(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	for own, commands := range map[int]int{kernel: kernel, 123_456: 123_456, begin: kernel, calm: kernel} {
		require.NoError(t, unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0))
		require.NoError(t, Plain(func() error {
			require.Equal(t, commands, slack(t))
			return nil
		}))
		require.Equal(t, own, slack(t))
		require.NoError(t, Calm(func(told int) error {
			require.Equal(t, commands, told)
			require.Equal(t, calm, slack(t))
			return nil
		}))
		require.Equal(t, own, slack(t))
	}
}

// The entries of our programs are written in assembly, which has the numbers again.
func TestTheEntriesHaveTheSameSlacks(t *testing.T) {
	entries, err := filepath.Glob("../../cmd/stepmux-init/entry_*.s")
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for _, name := range entries {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, slack := range []int{kernel, begin} {
			require.Regexp(t, fmt.Sprintf(`\$%d\b`, slack), string(text), name)
		}
	}
}
