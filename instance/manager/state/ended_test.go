package state

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The requests behind one that stayed had left the queue one by one. Once that one had gone too, the next purge removed
// the request at its bound: a build that waited for a slot never ran.
func TestARequestBehindThoseThatHaveLeftTheQueueStays(t *testing.T) {
	t.Parallel()
	s := open(t)
	push := func(key string) *Request {
		id, err := s.Push(t.Context(), key, "", []byte("text"))
		require.NoError(t, err)
		return &Request{ID: id, Seq: placeOf(id)}
	}
	queue, err := s.OpenQueue(t.Context(), storeTimeout)
	require.NoError(t, err)
	end := func(r *Request) {
		t.Helper()
		d, err := queue.Next(t.Context())
		require.NoError(t, err)
		handed, err := d.Request()
		require.NoError(t, err)
		require.Equal(t, r.ID, handed.ID)
		s.LeaveQueue(r, d)
	}
	left := func(want uint64) {
		t.Helper()
		require.Eventually(t, func() bool {
			s.Settle(t.Context())
			n, err := s.InQueue(t.Context(), map[string]bool{})
			require.NoError(t, err)
			return n == want
		}, storeTimeout, time.Millisecond)
	}
	held := push("held")
	d, err := queue.Next(t.Context())
	require.NoError(t, err)
	for _, key := range []string{"a", "b", "c"} {
		end(push(key))
	}
	left(1)
	s.LeaveQueue(held, d)
	left(0)

	first, waits := push("first"), push("waits")
	end(first)
	left(1)
	r, err := s.Find(t.Context(), waits.ID)
	require.NoError(t, err)
	require.NotNil(t, r)
}
