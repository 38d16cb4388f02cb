package connector

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errBroken = status.Error(codes.Unavailable, "the bridge broke")

func TestRetryOutlastsBridgesThatBreakLongApart(t *testing.T) {
	// Symptom: a job that said nothing for hours failed at the second break of its bridge.
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		require.NoError(t, retry(t.Context(), func() (bool, error) {
			if calls++; calls == 20 {
				return false, nil
			}
			time.Sleep(time.Hour) //nolint:forbidigo // of the bubble
			return false, errBroken
		}))
	})
}

func TestRetryGivesUpWhenNothingWorksForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.ErrorIs(t, retry(t.Context(), func() (bool, error) { return false, errBroken }), errBroken)
		require.Greater(t, time.Since(start), stallLimit)
		require.Less(t, time.Since(start), 2*stallLimit)
	})
}

func TestRetryTakesTheStepRunnersWord(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied} {
		calls := 0
		err := retry(t.Context(), func() (bool, error) { calls++; return false, status.Error(code, "no") })
		require.Equal(t, code, status.Code(err))
		require.Equal(t, 1, calls)
	}
	local := errors.New("disk full")
	require.ErrorIs(t, retry(t.Context(), func() (bool, error) { return true, local }), local)
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.Error(t, retry(ctx, func() (bool, error) { return true, errBroken }))
		require.Equal(t, time.Second, time.Since(start))
	})
}
