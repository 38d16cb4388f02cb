package state

import (
	"crypto/rand"
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

// Symptom: a build that was queued and acknowledged was unknown, and never ran, until the next start of the manager. Of
// the builds before it, the oldest had ended last.
func TestARequestOutlivesThoseOfBuildsThatHaveEnded(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := t.Context()
	push := func(n int) (all []*Request) {
		for range n {
			id, err := s.Push(ctx, rand.Text(), "", []byte("text"))
			require.NoError(t, err)
			r, err := s.Find(ctx, id)
			require.NoError(t, err)
			require.NotNil(t, r)
			all = append(all, r)
		}
		return all
	}
	old := push(4)
	for _, r := range old[1:] {
		require.NoError(t, s.queue.DeleteMsg(ctx, r.Seq))
	}
	s.LeaveQueue(old[0], nil)
	s.removeEnded(ctx)
	waiting := push(3)
	for _, r := range waiting[:2] {
		s.LeaveQueue(r, nil)
	}
	s.removeEnded(ctx)
	left, err := s.Find(ctx, waiting[2].ID)
	require.NoError(t, err)
	require.NotNil(t, left)
	queued, err := s.InQueue(ctx, map[string]bool{})
	require.NoError(t, err)
	require.EqualValues(t, 1, queued)
}
