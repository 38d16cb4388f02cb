package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

func TestDialIsTriedAgainAfterARefusedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(2, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{RetryBase: time.Second})
		acquire(t, p, "vm-1")
		gaps := v.gaps()
		require.Len(t, gaps, 2)
		requireBetween(t, time.Second/2, time.Second, gaps[0])
		requireBetween(t, time.Second, 2*time.Second, gaps[1])
	})
}

func TestAllWaitersGetTheErrorOfTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second, fail: func(n int) error { return fmt.Errorf("attempt %d: %w", n, errRefused) }}
		p := newPool(t, v, pool.Config[*conn]{DialAttempts: 2})
		first := acquireLater(t.Context(), p, "vm-1")
		second := acquireLater(t.Context(), p, "vm-1")
		a, b := (<-first).err, (<-second).err
		require.Same(t, a, b)
		var failed *pool.DialError
		require.ErrorAs(t, a, &failed)
		require.Equal(t, pool.Key("vm-1"), failed.Key)
		require.Equal(t, 2, failed.Attempts)
		require.False(t, failed.Permanent)
		require.ErrorIs(t, a, errRefused)
		require.EqualError(t, a, "connect vm-1: attempt 2: connection refused (2 attempts)")
		require.Equal(t, 2, v.dials())
	})
}

func TestPauseGrowsFromDialToDialUpToRetryMaxAndIsForgottenAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(6, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{DialAttempts: 1, RetryBase: time.Second, RetryMax: 8 * time.Second})
		for range 6 {
			_, err := p.Acquire(t.Context(), "vm-1")
			require.ErrorIs(t, err, errRefused)
		}
		require.Equal(t, 6, keyStat(p, "vm-1").Failures)
		acquire(t, p, "vm-1").Retire(nil)
		acquire(t, p, "vm-1").Release()
		require.Zero(t, keyStat(p, "vm-1").Failures)

		gaps := v.gaps()
		for i, pause := range []time.Duration{1, 2, 4, 8, 8, 8} {
			requireBetween(t, pause*time.Second/2, pause*time.Second, gaps[i])
		}
		require.Zero(t, gaps[6], "after a success there is no pause")
	})
}

func TestPermanentErrorIsNotTriedAgainWithinTheDial(t *testing.T) {
	for name, cfg := range map[string]pool.Config[*conn]{
		"by its method": {},
		"by Config":     {Permanent: func(err error) bool { return errors.As(err, new(errLogin)) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &vms{fail: failFirst(1, fmt.Errorf("dial: %w", errLogin{}))}
				cfg.RetryMax = 20 * time.Second
				p := newPool(t, v, cfg)
				start := time.Now()
				_, err := p.Acquire(t.Context(), "vm-1")
				var failed *pool.DialError
				require.ErrorAs(t, err, &failed)
				require.True(t, failed.Permanent)
				require.EqualError(t, err, "connect vm-1: dial: login refused")
				require.Zero(t, time.Since(start))

				// While the pause lasts the answer is the same, at once and without a dial.
				pass(19 * time.Second)
				_, again := p.Acquire(t.Context(), "vm-1")
				require.Equal(t, err, again)
				require.Equal(t, 1, v.dials())

				// After it the login is found mended.
				pass(time.Second)
				acquire(t, p, "vm-1")
				require.Equal(t, []time.Duration{20 * time.Second}, v.gaps())
			})
		})
	}
}

func TestConfigPermanentReplacesTheMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(1, errLogin{})}
		p := newPool(t, v, pool.Config[*conn]{Permanent: func(error) bool { return false }})
		acquire(t, p, "vm-1")
		require.Equal(t, 2, v.dials())
	})
}

func TestCallerThatLeavesDuringThePauseLearnsWhatItWasFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(1, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{DialAttempts: 1, RetryBase: time.Minute})
		_, err := p.Acquire(t.Context(), "vm-1")
		require.ErrorIs(t, err, errRefused)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, errRefused, "its own end is why it failed")
		require.EqualError(t, err, "acquire vm-1: context deadline exceeded (last attempt to connect: "+errRefused.Error()+")")
		require.Equal(t, 1, v.dials())
		synctest.Wait()
		require.False(t, keyStat(p, "vm-1").Dialing, "nobody waits, nobody dials")
	})
}

func TestDialTimeoutBoundsTheAttemptsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: 4 * time.Second, fail: failFirst(math.MaxInt, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{DialTimeout: 10 * time.Second, DialAttempts: 10})
		start := time.Now()
		_, err := p.Acquire(t.Context(), "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no connection within 10s")
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, 3, v.dials())
	})
}

func TestDialEndsWithItsLastErrorWhenThePauseIsLongerThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second, fail: failFirst(math.MaxInt, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{DialTimeout: 4 * time.Second, RetryBase: 10 * time.Second})
		start := time.Now()
		_, err := p.Acquire(t.Context(), "vm-1")
		require.EqualError(t, err, "connect vm-1: connection refused")
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestDialThatFindsNoTurnForItsNextAttemptEndsInTimeWithItsLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, nil, pool.Config[*conn]{
			MaxDials:    1,
			DialTimeout: 10 * time.Second,
			Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				if key == "refuses" {
					return nil, errRefused
				}
				<-ctx.Done() // takes the only turn for all its time
				return nil, ctx.Err()
			},
		})
		start := time.Now()
		refused := acquireLater(t.Context(), p, "refuses")
		pass(time.Millisecond)
		silent := acquireLater(t.Context(), p, "silent")
		err := (<-refused).err
		require.EqualError(t, err, "connect refuses: connection refused")
		require.Equal(t, 10*time.Second, time.Since(start))
		require.ErrorIs(t, (<-silent).err, context.DeadlineExceeded)
	})
}

func TestCallerThatLeavesBetweenAttemptsEndsTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(1, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{RetryBase: 10 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, keyStat(p, "vm-1").Dialing)
		pass(time.Hour)
		require.Equal(t, 1, v.dials())
	})
}

func TestRetriesEndWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second, fail: failFirst(math.MaxInt, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pass(time.Hour)
		require.Equal(t, 1, v.dials())
	})
}

func TestConnectionThatIsDeadOnArrivalIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, nil, pool.Config[*conn]{
			Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				c, err := v.Dial(ctx, key)
				if v.dials() == 1 {
					c.end(errCut)
				}
				return c, err
			},
		})
		l := acquire(t, p, "vm-1")
		require.Same(t, v.conns[1], l.Conn())
		require.Equal(t, 1, v.conns[0].closed())
		require.Equal(t, uint64(1), p.Stat().Failures)
	})
}

func TestBackoffStaysWithinItsLimits(t *testing.T) {
	const largest = time.Duration(math.MaxInt64)
	for n := 1; n < 200; n++ {
		requireBetween(t, 15*time.Second, 30*time.Second, pool.Backoff(30*time.Second, 30*time.Second, n))
		requireBetween(t, 0, largest, pool.Backoff(time.Nanosecond, largest, n))
	}
	requireBetween(t, largest/2, largest, pool.Backoff(time.Hour, largest, 1000))
}

func requireBetween(t *testing.T, low, high, got time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, got, low)
	require.LessOrEqual(t, got, high)
}
