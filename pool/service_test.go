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

func TestIdleConnectionIsClosedAfterIdleTimeoutSinceItsLastLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{IdleTimeout: time.Minute})
		a, b := acquire(t, p, "vm-1"), acquire(t, p, "vm-1")
		pass(10 * time.Minute)
		a.Release()
		pass(10 * time.Minute)
		require.Zero(t, v.conns[0].closed(), "b uses it")
		b.Release()
		pass(30 * time.Second)
		acquire(t, p, "vm-1").Release()
		pass(time.Minute - 1)
		require.Zero(t, v.conns[0].closed(), "it was used in between")
		pass(1)
		require.Equal(t, 1, v.conns[0].closed())
		require.Zero(t, p.Known())

		acquire(t, p, "vm-1")
		require.Equal(t, 2, v.dials())
	})
}

func TestNegativeIdleTimeoutKeepsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{IdleTimeout: -1})
		acquire(t, p, "vm-1").Release()
		pass(1000 * time.Hour)
		require.Zero(t, v.conns[0].closed())
		require.Same(t, v.conns[0], acquire(t, p, "vm-1").Conn())
	})
}

//stepmux:reliability promises | Recycling never ends a build
//stepmux:with pool.TestDrainingConnectionIsClosedWithItsLastLease
func TestConnectionPastItsAgeDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{MaxAge: time.Hour})
		old := acquire(t, p, "vm-1")
		pass(54*time.Minute - 1)
		require.Same(t, old.Conn(), acquire(t, p, "vm-1").Conn(), "at most a tenth is taken off")
		second := acquire(t, p, "vm-1")
		pass(6*time.Minute + 1)

		young := acquire(t, p, "vm-1")
		require.NotSame(t, old.Conn(), young.Conn())
		require.Zero(t, v.conns[0].closed(), "what is in flight goes on")
		conns := keyStat(p, "vm-1").Conns
		require.Len(t, conns, 2)
		require.ErrorIs(t, conns[0].Cause, pool.ErrExpired)
		require.True(t, conns[0].Draining)
		require.Equal(t, 3, conns[0].Leases)
		require.False(t, conns[1].Draining)

		old.Release()
		second.Release()
		synctest.Wait()
		require.Zero(t, v.conns[0].closed(), "one lease is still out")
		require.Same(t, young.Conn(), acquire(t, p, "vm-1").Conn())
	})
}

func TestDrainingConnectionIsClosedWithItsLastLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{MaxAge: time.Hour})
		l := acquire(t, p, "vm-1")
		pass(2 * time.Hour)
		require.Zero(t, v.conns[0].closed())
		l.Release()
		synctest.Wait()
		require.Equal(t, 1, v.conns[0].closed())
		require.Zero(t, p.Known())
	})
}

func TestUnusedConnectionPastItsAgeIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{MaxAge: time.Hour, IdleTimeout: -1})
		acquire(t, p, "vm-1").Release()
		pass(time.Hour)
		require.Equal(t, 1, v.conns[0].closed())
	})
}

func TestDeadConnectionIsDroppedAndTheNextAcquireDialsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		l := acquire(t, p, "vm-1")
		l.Conn().end(errCut)
		// The pool's goroutine may not have run yet: even so it must not be given out.
		next := acquire(t, p, "vm-1")
		require.NotSame(t, l.Conn(), next.Conn())

		synctest.Wait()
		require.Equal(t, 1, v.conns[0].closed(), "at once: its users need no more of it")
		require.ErrorIs(t, l.Conn().Err(), errCut)
		dead := keyStat(p, "vm-1").Conns[0]
		require.Equal(t, 1, dead.Leases)
		require.ErrorIs(t, dead.Cause, errCut)

		l.Release()
		synctest.Wait()
		require.Len(t, keyStat(p, "vm-1").Conns, 1)
		require.Equal(t, 1, v.conns[0].closed(), "and once")
	})
}

func TestDeadUnusedConnectionIsForgottenWithoutBeingAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		acquire(t, p, "vm-1").Release()
		v.conns[0].end(errCut)
		synctest.Wait()
		require.Equal(t, 1, v.conns[0].closed())
		require.Zero(t, p.Known())
	})
}

//stepmux:reliability mechanisms | Recycling never ends a build | `pool/pooled.go`
func TestRetireDrainsTheKeysConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		used, other := acquire(t, p, "vm-1"), acquire(t, p, "vm-2")
		p.Retire("vm-1", errors.New("rebooted"))
		p.Retire("vm-1", nil)
		p.Retire("unknown", nil)
		require.EqualError(t, keyStat(p, "vm-1").Conns[0].Cause, "rebooted")

		require.NotSame(t, used.Conn(), acquire(t, p, "vm-1").Conn())
		require.NoError(t, used.Conn().Err())
		used.Release()
		synctest.Wait()
		require.ErrorIs(t, used.Conn().Err(), errClosedHere)
		require.NoError(t, other.Conn().Err())
		require.Zero(t, keyStat(p, "unknown"))
	})
}

func TestRetireEndsTheDialUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{})
		waiting := acquireLater(t.Context(), p, "vm-1")
		synctest.Wait()
		deleted := errors.New("instance deleted")
		p.Retire("vm-1", deleted)
		err := (<-waiting).err
		require.ErrorIs(t, err, deleted)
		require.EqualError(t, err, "connect vm-1: instance deleted")
		synctest.Wait()
		require.Zero(t, p.Known(), "a dial that was ended is no failure of the machine")
	})
}

func TestConnectionThatArrivesAfterRetireIsClosedBeforeTheNextDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, nil, pool.Config[*conn]{
			Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				if v.dials() == 1 && v.conns[0].closed() == 0 {
					t.Error("two connections without leases")
				}
				return v.Dial(context.WithoutCancel(ctx), key) // deaf
			},
		})
		first := acquireLater(t.Context(), p, "vm-1")
		synctest.Wait()
		p.Retire("vm-1", nil)
		next := acquire(t, p, "vm-1")
		require.Error(t, (<-first).err)
		require.Same(t, v.conns[1], next.Conn())
		require.Equal(t, []time.Duration{time.Second}, v.gaps(), "one dial of a key at a time")
	})
}

func TestNextDialWaitsForTheEndOfAConnectionWithoutLeases(t *testing.T) {
	for name, c := range map[string]struct {
		endsAtOnce bool
		waits      time.Duration
	}{
		"that ends late":    {endsAtOnce: false, waits: time.Minute},
		"that ends at once": {endsAtOnce: true, waits: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &vms{}
				p := pool.New(pool.Config[*slowCloser]{
					Dial: func(ctx context.Context, key pool.Key) (*slowCloser, error) {
						c0, err := v.Dial(ctx, key)
						return &slowCloser{conn: c0, endsAtOnce: c.endsAtOnce}, err
					},
				})
				l, err := p.Acquire(t.Context(), "vm-1")
				require.NoError(t, err)
				l.Retire(nil)
				_, err = p.Acquire(t.Context(), "vm-1")
				require.NoError(t, err)
				require.Equal(t, []time.Duration{c.waits}, v.gaps())
				require.NoError(t, p.Close())
			})
		})
	}
}

// slowCloser is a connection that takes a minute to close.
type slowCloser struct {
	*conn
	endsAtOnce bool
}

func (c *slowCloser) Close() error {
	if c.endsAtOnce {
		c.end(errClosedHere)
	}
	time.Sleep(time.Minute) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
	return c.conn.Close()
}

func TestLeaseRetireLeavesANewerConnectionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		a, b := acquire(t, p, "vm-1"), acquire(t, p, "vm-1")
		a.Retire(errors.New("too many sessions refused"))
		a.Release()
		newer := acquire(t, p, "vm-1")
		require.NotSame(t, a.Conn(), newer.Conn())
		require.NoError(t, b.Conn().Err(), "b goes on")

		b.Retire(nil)
		synctest.Wait()
		require.ErrorIs(t, b.Conn().Err(), errClosedHere)
		require.Same(t, newer.Conn(), acquire(t, p, "vm-1").Conn())
		require.Equal(t, 2, v.dials())
	})
}

func TestSeverClosesTheConnectionUnderItsLeasesAndEndsTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{})
		used, other := acquire(t, p, "vm-1"), acquire(t, p, "vm-2")
		gone := errors.New("gone")
		p.Sever("vm-1", gone)
		require.Equal(t, 1, v.conns[0].closed(), "it is closed when Sever returns")
		require.Zero(t, v.conns[1].closed())
		p.Sever("vm-1", gone)
		p.Sever("vm-3", gone)
		again := acquire(t, p, "vm-1")
		require.NotSame(t, used.Conn(), again.Conn())
		used.Release()
		again.Release()
		other.Release()
		synctest.Wait()
		require.Equal(t, 1, v.conns[0].closed(), "once")
		require.Zero(t, v.conns[2].closed())
	})
}
