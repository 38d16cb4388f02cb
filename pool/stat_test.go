package pool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

func TestStatShowsWhereEachKeyStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second, fail: failFirst(1, errLogin{})}
		p := newPool(t, v, pool.Config[*conn]{})
		require.Equal(t, pool.Stat{Keys: []pool.KeyStat{}}, p.Stat())
		start := time.Now()
		_, err := p.Acquire(t.Context(), "failed")
		require.Error(t, err)
		acquire(t, p, "aged")
		acquire(t, p, "aged")
		p.Retire("aged", errCut)
		acquire(t, p, "aged")
		acquireLater(t.Context(), p, "dialed")
		acquireLater(t.Context(), p, "dialed")
		synctest.Wait()

		require.Equal(t, pool.Stat{
			Keys: []pool.KeyStat{
				{Key: "aged", Conns: []pool.ConnStat{
					{Since: start.Add(2 * time.Second), Leases: 2, Draining: true, Cause: errCut},
					{Since: start.Add(3 * time.Second), Leases: 1},
				}},
				{Key: "dialed", Dialing: true, Waiting: 2},
			},
			Leases:  3,
			Waiting: 2,
			Dials:   4,
		}, p.Stat())
		require.Equal(t, pool.Up, keyStat(p, "aged").State())
		require.Equal(t, pool.Dialing, keyStat(p, "dialed").State())
		require.Equal(t, pool.None, keyStat(p, "failed").State())
		p.Retire("aged", errCut)
		require.Equal(t, pool.Leaving, keyStat(p, "aged").State())
	})
}

func TestRetiredIsCalledOnceForEachConnectionWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var retired []string
		var p *pool.Pool[*conn]
		v := &vms{fail: failFirst(1, errLogin{})}
		p = newPool(t, v, pool.Config[*conn]{IdleTimeout: time.Hour, Retired: func(key pool.Key, cause error) {
			p.Stat() // would block for ever if the pool held its lock
			mu.Lock()
			defer mu.Unlock()
			retired = append(retired, fmt.Sprintf("%s: %v", key, cause))
		}})
		_, err := p.Acquire(t.Context(), "vm-1")
		require.Error(t, err)
		l := acquire(t, p, "vm-1")
		acquire(t, p, "vm-1").Release()
		l.Retire(errCut)
		synctest.Wait()
		acquire(t, p, "vm-2").Release()
		pass(time.Hour)
		last := acquire(t, p, "vm-2")
		synctest.Wait()
		require.NoError(t, p.Close())
		last.Release()
		require.Equal(t, []string{
			"vm-1: cable cut",
			"vm-2: connection was idle",
			"vm-2: pool is closed",
		}, retired)
	})
}

func TestDialAndCloseAreCalledWithNoLockHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		var p *pool.Pool[*nosy]
		p = pool.New(pool.Config[*nosy]{
			Dial: func(ctx context.Context, key pool.Key) (*nosy, error) {
				p.Stat()
				c, err := v.Dial(ctx, key)
				return &nosy{conn: c, look: func() { p.Stat() }}, err
			},
		})
		for range 2 {
			l, err := p.Acquire(t.Context(), "vm-1")
			require.NoError(t, err)
			l.Conn().end(errCut)
		}
		v.fail = func(int) error { return errRefused }
		_, err := p.Acquire(t.Context(), "vm-1")
		require.ErrorIs(t, err, errRefused)
		require.NoError(t, p.Close())
	})
}

// nosy is a connection that looks into the pool whenever the pool calls it.
type nosy struct {
	*conn
	look func()
}

func (c *nosy) Done() <-chan struct{} { c.look(); return c.conn.Done() }
func (c *nosy) Err() error            { c.look(); return c.conn.Err() }
func (c *nosy) Close() error          { c.look(); return c.conn.Close() }
