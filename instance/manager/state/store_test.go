package state

import (
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the state in a new directory, until the test ends.
func open(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{
		Dir: dir, KeyFile: filepath.Join(dir, "key"), Keep: time.Hour, LogBytes: 1 << 30, FileBytes: 1 << 30,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// A manager that was started just when builds, or leases, that had ended were not kept any more took them for damage by
// the disk, and did not start. There are more records here than are read at once, and the time of one of them ends
// meanwhile.
func TestBuildsThatAreNotKeptAnyMoreDuringTheCheckAreNoDamage(t *testing.T) {
	t.Parallel()
	s := open(t)
	for i := range 2000 {
		_, err := s.js.PublishAsync("$KV."+buildsBucket+".lease.x"+strconv.Itoa(i), nil)
		require.NoError(t, err)
	}
	<-s.js.PublishAsyncComplete()
	end := sync.OnceFunc(func() {
		_, err := s.Purge(t.Context(), s.Builds, "lease.x1500")
		require.NoError(t, err)
	})
	lost, err := s.unreadable(t.Context(), s.history, func([]byte) { end() })
	require.NoError(t, err)
	require.Zero(t, lost)
}
