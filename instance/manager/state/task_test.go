package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The same text may be kept twice, as after an answer that was lost. Another manager takes the task over only from the
// revision that it has seen, and then the first one cannot write any more.
func TestATaskHasOneManager(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := t.Context()
	first, err := s.KeepTask(ctx, "gitea.one.task.7", "a", []byte("text\nof it"), 0)
	require.NoError(t, err)
	again, err := s.KeepTask(ctx, "gitea.one.task.7", "a", []byte("text\nof it"), 0)
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = s.KeepTask(ctx, "gitea.one.task.7", "b", []byte("text\nof it"), 0)
	require.ErrorIs(t, err, ErrTaken)

	all, err := s.Tasks(ctx, "gitea.one.task")
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"gitea.one.task.7": first}, all)
	take := func(revision uint64, by string, free bool) (string, uint64) {
		text, now, err := s.TakeTask(ctx, "gitea.one.task.7", revision, by, func(of string) bool {
			require.Contains(t, "ab", of)
			return free
		})
		require.NoError(t, err)
		return string(text), now
	}
	text, _ := take(first, "b", false)
	require.Empty(t, text)
	text, second := take(first, "a", true) // it has come back
	require.Equal(t, "text\nof it", text)
	text, _ = take(first, "b", true)
	require.Empty(t, text, "the first one was faster")
	text, third := take(second, "b", true)
	require.Equal(t, "text\nof it", text)
	_, err = s.KeepTask(ctx, "gitea.one.task.7", "a", []byte("more"), second)
	require.ErrorIs(t, err, ErrTaken)
	_, err = s.KeepTask(ctx, "gitea.one.task.7", "b", []byte("more"), third)
	require.NoError(t, err)
	require.NoError(t, s.ForgetText(ctx, "gitea.one.task.7"))
	text, _ = take(third, "b", true)
	require.Empty(t, text)
}
