package pool_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

func TestNewPanicsOnMisuse(t *testing.T) {
	require.PanicsWithValue(t, "pool: Dial is nil", func() { pool.New(pool.Config[*conn]{}) })
	v := &vms{}
	require.PanicsWithValue(t, "pool: negative limit in Config", func() {
		pool.New(pool.Config[*conn]{Dial: v.Dial, MaxAge: -1})
	})
}

func TestLeasesOfOneKeyShareOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		a, b := acquire(t, p, "vm-1"), acquire(t, p, "vm-1")
		require.Same(t, a.Conn(), b.Conn())
		require.Equal(t, pool.Key("vm-1"), a.Conn().key)
		require.Equal(t, 1, v.dials())

		other := acquire(t, p, "vm-2")
		require.NotSame(t, a.Conn(), other.Conn())
		require.Equal(t, 2, v.dials())
	})
}

//stepmux:reliability mechanisms | One connection for each VM | `pool/dial.go`
func TestAcquireJoinsTheDialUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{})
		var waiting []<-chan outcome
		for range 50 {
			waiting = append(waiting, acquireLater(t.Context(), p, "vm-1"))
		}
		synctest.Wait()
		require.Equal(t, 50, p.Stat().Waiting)
		for _, w := range waiting {
			out := <-w
			require.NoError(t, out.err)
			require.Same(t, v.conns[0], out.lease.Conn())
		}
		require.Equal(t, 1, v.dials())
		require.Equal(t, 50, p.Stat().Leases)
		require.Zero(t, p.Stat().Waiting)
	})
}

func TestAcquireSurvivesCancelOfFirstWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{})
		ctx, cancel := context.WithCancelCause(t.Context())
		first := acquireLater(ctx, p, "vm-1")
		synctest.Wait()
		second := acquireLater(t.Context(), p, "vm-1")
		synctest.Wait()

		userLeft := errors.New("user left")
		cancel(userLeft)
		synctest.Wait()
		require.ErrorIs(t, (<-first).err, userLeft)
		require.Equal(t, 1, p.Stat().Waiting)

		out := <-second
		require.NoError(t, out.err)
		require.Equal(t, 1, v.dials())
		require.Equal(t, 1, p.Stat().Leases, "the first waiter holds none")
	})
}

func TestDialThatBeganGoesOnWhenAllWaitersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{IdleTimeout: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pass(2 * time.Second)

		l := acquire(t, p, "vm-1")
		require.Equal(t, 1, v.dials())
		l.Release()

		pass(2 * time.Minute)
		require.Equal(t, 1, v.conns[0].closed(), "it goes idle like any other")
	})
}

// standby waits in pool.Standby for release before it dials.
func standby(v *vms, release <-chan struct{}) func(context.Context, pool.Key) (*conn, error) {
	return func(ctx context.Context, key pool.Key) (*conn, error) {
		err := pool.Standby(ctx, func() error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return nil, err
		}
		return v.Dial(ctx, key)
	}
}

func TestDialInStandbyIsGivenUpWhenAllWaitersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, turn := &vms{takes: time.Second}, make(chan struct{})
		p := newPool(t, v, pool.Config[*conn]{Dial: standby(v, turn)})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, keyStat(p, "vm-1").Dialing)
		synctest.Wait()
		require.Zero(t, p.Known())

		close(turn)
		require.Equal(t, pool.Key("vm-1"), acquire(t, p, "vm-1").Conn().key, "it can be asked for again")
		require.Equal(t, 1, v.dials())
	})
}

func TestDialThatGoesToStandbyWithoutWaitersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
			time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
			if err := pool.Standby(ctx, func() error { return nil }); err != nil {
				return nil, err
			}
			return v.Dial(ctx, key)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, keyStat(p, "vm-1").Dialing, "it goes on until it stands by")
		pass(time.Second)
		require.Zero(t, p.Known())
		require.Zero(t, v.dials())
	})
}

func TestStandbyOutsideADialOnlyCallsItsFunction(t *testing.T) {
	require.Equal(t, errCut, pool.Standby(t.Context(), func() error { return errCut }))
}

func TestAllWaitersGetTheErrorOfTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second, fail: failFirst(1, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{})
		first := acquireLater(t.Context(), p, "vm-1")
		second := acquireLater(t.Context(), p, "vm-1")
		require.Equal(t, errRefused, (<-first).err)
		require.Equal(t, errRefused, (<-second).err)
		acquire(t, p, "vm-1")
		require.Equal(t, 2, v.dials(), "the next Acquire dials again, at once")
	})
}

func TestConnectionThatIsDeadOnArrivalIsAFailedDial(t *testing.T) {
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
		_, err := p.Acquire(t.Context(), "vm-1")
		require.ErrorIs(t, err, errCut)
		require.EqualError(t, err, "connect vm-1: connection ended at once: cable cut")
		require.Equal(t, 1, v.conns[0].closed())
		require.Same(t, v.conns[1], acquire(t, p, "vm-1").Conn())
	})
}

func TestOneKeyIsDialedOnceAtATimeWhateverItsCallersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: 3 * time.Second}
		var busy atomic.Int32
		p := newPool(t, nil, pool.Config[*conn]{
			Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				if busy.Add(1) > 1 {
					t.Error("two dials at once")
				}
				defer busy.Add(-1)
				return v.Dial(context.WithoutCancel(ctx), key)
			},
		})
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := p.Acquire(ctx, "vm-1")
			require.Error(t, err)
			p.Retire("vm-1", nil)
			cancel()
		}
		acquire(t, p, "vm-1")
	})
}

func TestAcquireWithEndedContextTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		defer l.Release()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, key := range []pool.Key{"vm-1", "vm-2"} {
			_, err := p.Acquire(ctx, key)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, string(key))
		}
		require.Equal(t, 1, p.Stat().Leases)
		require.Equal(t, 1, v.dials())
	})
}

type traceID struct{}

func TestDialHasTheFirstCallersValuesButNotItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		var value any
		p := newPool(t, nil, pool.Config[*conn]{
			Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				value = ctx.Value(traceID{})
				return v.Dial(ctx, key)
			},
		})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), traceID{}, "build-7"), time.Millisecond)
		defer cancel()
		_, err := p.Acquire(ctx, "vm-1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotNil(t, acquire(t, p, "vm-1"))
		require.Equal(t, "build-7", value)
		require.Equal(t, 1, v.dials())
	})
}

func TestReleaseCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		a, b := acquire(t, p, "vm-1"), acquire(t, p, "vm-1")
		a.Release()
		a.Release()
		a.Retire(errCut)
		synctest.Wait()
		require.Equal(t, 1, p.Stat().Leases)
		require.NoError(t, b.Conn().Err(), "an ended lease retires nothing")
		require.Same(t, b.Conn(), acquire(t, p, "vm-1").Conn())
	})
}
