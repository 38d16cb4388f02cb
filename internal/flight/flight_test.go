package flight

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCallersShareOneWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flight[int]
		defer f.Close()
		runs := 0
		work := func(context.Context) (int, time.Duration, error) {
			runs++
			time.Sleep(time.Second) //nolint:forbidigo // fake time
			return 7, 0, nil
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				got, err := f.Do(t.Context(), work)
				require.NoError(t, err)
				require.Equal(t, 7, got)
			})
		}
		wg.Wait()
		require.Equal(t, 1, runs)
		_, _ = f.Do(t.Context(), work)
		require.Equal(t, 2, runs, "a result that is not kept is found anew")
	})
}

func TestResultIsKeptUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flight[int]
		defer f.Close()
		runs := 0
		work := func(context.Context) (int, time.Duration, error) { runs++; return runs, time.Minute, nil }
		ask := func() int {
			got, err := f.Do(t.Context(), work)
			require.NoError(t, err)
			return got
		}
		require.Equal(t, 1, ask())
		time.Sleep(59 * time.Second) //nolint:forbidigo // fake time
		require.Equal(t, 1, ask())
		got, ok := f.Kept()
		require.True(t, ok)
		require.Equal(t, 1, got)
		time.Sleep(2 * time.Second) //nolint:forbidigo // fake time
		_, ok = f.Kept()
		require.False(t, ok)
		require.Equal(t, 2, ask())
		f.Forget()
		require.Equal(t, 3, ask())
		f.Set(9, -1)
		time.Sleep(time.Hour) //nolint:forbidigo // fake time
		require.Equal(t, 9, ask())
	})
}

func TestWorkSurvivesTheCallerThatStartedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flight[int]
		defer f.Close()
		work := func(ctx context.Context) (int, time.Duration, error) {
			time.Sleep(time.Second) //nolint:forbidigo // fake time
			return 1, 0, ctx.Err()
		}
		first, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := f.Do(first, work)
			require.ErrorIs(t, err, gone)
		})
		synctest.Wait()
		wg.Go(func() {
			got, err := f.Do(t.Context(), work)
			require.NoError(t, err)
			require.Equal(t, 1, got)
		})
		synctest.Wait()
		cancel(gone)
		wg.Wait()
	})
}

func TestTheLastCallerEndsTheWorkAndWaitsForItUnlessItGoesOn(t *testing.T) {
	for _, goOn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := Flight[int]{GoOn: goOn}
			defer f.Close()
			var ended error
			var returned bool
			work := func(ctx context.Context) (int, time.Duration, error) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second): //nolint:forbidigo // fake time
				}
				ended = ctx.Err()
				time.Sleep(time.Second) //nolint:forbidigo // fake time
				returned = true
				return 1, -1, ended
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := f.Do(ctx, work)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, goOn || returned)
			time.Sleep(2 * time.Second) //nolint:forbidigo // fake time
			_, kept := f.Kept()
			require.Equal(t, goOn, kept)
			f.Close()
			require.Equal(t, goOn, ended == nil)
		})
	}
}

func TestCloseEndsTheWorkAndWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flight[int]
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := f.Do(t.Context(), func(ctx context.Context) (int, time.Duration, error) {
				<-ctx.Done()
				return 0, 0, context.Cause(ctx)
			})
			require.ErrorIs(t, err, ErrClosed)
		})
		synctest.Wait()
		f.Close()
		f.Close()
		wg.Wait()
		_, err := f.Do(t.Context(), nil)
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestClaimedWorkIsReportedToThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flight[int]
		defer f.Close()
		require.NoError(t, f.Wait(t.Context()), "nothing is under way")
		report := f.Claim()
		require.NotNil(t, report)
		require.Nil(t, f.Claim(), "another caller does the work")
		_, ok := f.Kept()
		require.False(t, ok)
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		require.ErrorContains(t, f.Wait(ended), "enough")
		go func(report func(int, time.Duration)) {
			time.Sleep(time.Second) //nolint:forbidigo // fake time
			report(7, -1)
			report(8, -1)
		}(report)
		require.NoError(t, f.Wait(t.Context()))
		got, ok := f.Kept()
		require.True(t, ok)
		require.Equal(t, 7, got, "the first report counts")
		require.Nil(t, f.Claim(), "a result is kept")
		f.Forget()
		report = f.Claim()
		report(0, 0)
		_, ok = f.Kept()
		require.False(t, ok)
		require.NotNil(t, f.Claim(), "nothing was learned")
	})
}

func TestStartDoesNotWaitAndOthersJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := Flight[int]{GoOn: true}
		runs := 0
		work := func(context.Context) (int, time.Duration, error) {
			runs++
			time.Sleep(time.Second) //nolint:forbidigo // fake time
			return runs, 0, nil
		}
		for range 3 {
			f.Start(t.Context(), work)
		}
		got, err := f.Do(t.Context(), work)
		require.NoError(t, err)
		require.Equal(t, 1, got)
		f.Close()
		f.Start(t.Context(), work)
		synctest.Wait()
		require.Equal(t, 1, runs, "nothing starts after Close")
	})
}

func TestResultThatNoLongerHoldsIsFoundAnew(t *testing.T) {
	holds, runs := true, 0
	f := Flight[int]{Holds: func(int) bool { return holds }}
	defer f.Close()
	work := func(context.Context) (int, time.Duration, error) { runs++; return runs, -1, nil }
	ask := func() int {
		got, err := f.Do(t.Context(), work)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, 1, ask())
	require.Equal(t, 1, ask())
	holds = false
	_, ok := f.Kept()
	require.False(t, ok)
	require.Equal(t, 2, ask())
}
