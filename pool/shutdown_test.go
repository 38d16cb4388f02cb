package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

func TestShutdownWaitsForLeasesAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		used := acquire(t, p, "vm-1")
		acquire(t, p, "vm-2").Release()
		done := make(chan error, 1)
		go func() { done <- p.Shutdown(t.Context()) }()
		synctest.Wait()
		require.Empty(t, done)
		require.NoError(t, used.Conn().Err())
		require.Equal(t, 1, v.conns[1].closed(), "an unused one is closed at once")
		for _, key := range []pool.Key{"vm-1", "vm-2", "vm-3"} {
			_, err := p.Acquire(t.Context(), key)
			require.ErrorIs(t, err, pool.ErrClosed)
		}
		used.Release()
		require.NoError(t, <-done)
		require.Equal(t, 1, v.conns[0].closed())
		require.NoError(t, p.Shutdown(t.Context()), "again")
	})
}

func TestShutdownWaitsForLeasesOnDeadConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, &vms{}, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		l.Conn().end(errCut)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- p.Shutdown(t.Context()) }()
		synctest.Wait()
		require.Empty(t, done)
		l.Release()
		require.NoError(t, <-done)
	})
}

func TestShutdownClosesWhatIsLeftWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, &vms{}, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		hurry := errors.New("second signal")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, hurry)
		defer cancel()
		start := time.Now()
		err := p.Shutdown(ctx)
		require.ErrorIs(t, err, hurry)
		require.EqualError(t, err, "shut down pool, leases out: 1: second signal")
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, l.Conn().Err(), errClosedHere)
		l.Release()
	})
}

func TestShutdownOfAnUnusedPoolNeedsNoTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := newPool(t, &vms{}, pool.Config[*conn]{})
	require.NoError(t, p.Shutdown(ctx))
}

func TestShutdownEndsTheWaitOfCallers(t *testing.T) {
	for name, v := range map[string]*vms{
		"in a dial":                      {takes: time.Hour},
		"in a dial that ignores its end": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := pool.Config[*conn]{}
				deaf := &vms{takes: time.Minute}
				if v == nil {
					cfg.Dial = func(ctx context.Context, key pool.Key) (*conn, error) {
						return deaf.Dial(context.WithoutCancel(ctx), key)
					}
				}
				p := newPool(t, v, cfg)
				waiting := acquireLater(t.Context(), p, "vm-1")
				synctest.Wait()
				start := time.Now()
				done := make(chan error, 1)
				go func() { done <- p.Shutdown(t.Context()) }()
				require.ErrorIs(t, (<-waiting).err, pool.ErrClosed)
				require.Zero(t, time.Since(start))
				require.NoError(t, <-done)
				for _, c := range deaf.conns {
					require.Equal(t, 1, c.closed())
				}
			})
		})
	}
}

func TestCloseEndsEverythingUnderItsUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		draining := acquire(t, p, "vm-2")
		p.Retire("vm-2", nil)
		waiting := acquireLater(t.Context(), p, "vm-3")
		synctest.Wait()

		second := make(chan error, 1)
		go func() { second <- p.Close() }()
		require.NoError(t, p.Close())
		require.NoError(t, <-second)
		require.ErrorIs(t, (<-waiting).err, pool.ErrClosed)
		require.Equal(t, 1, l.Conn().closed())
		require.Equal(t, 1, draining.Conn().closed())
		require.Zero(t, p.Known())

		l.Release()
		draining.Retire(errCut)
		p.Retire("vm-1", nil)
		_, err := p.Acquire(t.Context(), "vm-1")
		require.ErrorIs(t, err, pool.ErrClosed)
		require.EqualError(t, err, "acquire vm-1: pool is closed")
	})
}

func TestCloseCutsAShutdownShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, &vms{}, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		done := make(chan error, 1)
		go func() { done <- p.Shutdown(t.Context()) }()
		synctest.Wait()
		require.NoError(t, p.Close())
		require.NoError(t, <-done)
		require.Equal(t, 1, l.Conn().closed())
	})
}
