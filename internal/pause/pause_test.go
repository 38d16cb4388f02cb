package pause

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUntilEndsWithItsContext(t *testing.T) {
	calls := 0
	require.NoError(t, Until(t.Context(), func() (bool, error) {
		calls++
		return calls == 3, nil
	}))
	require.Equal(t, 3, calls)
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	require.ErrorIs(t, Until(ctx, func() (bool, error) { return false, nil }), because)
	require.ErrorIs(t, Until(t.Context(), func() (bool, error) { return false, because }), because)
}
