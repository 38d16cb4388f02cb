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

// record is a Trace that records its events. Each hook asks the pool for its Stat, which
// would block for ever if the pool called it with its lock held.
type record struct {
	stat func() pool.Stat

	mu    sync.Mutex // guards the following
	lines []string
}

func (r *record) add(format string, args ...any) {
	if r.stat != nil {
		r.stat()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) trace() *pool.Trace {
	return &pool.Trace{
		Acquire: func(key pool.Key, waited time.Duration, err error) { r.add("acquire %s in %v: %v", key, waited, err) },
		Release: func(key pool.Key) { r.add("release %s", key) },
		Retire:  func(key pool.Key, cause error) { r.add("retire %s: %v", key, cause) },
		Close:   func(key pool.Key, err error) { r.add("close %s: %v", key, err) },
	}
}

func TestTraceIsToldWhatHappensInItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &record{}
		v := &vms{takes: time.Second, fail: failFirst(1, errLogin{})}
		p := newPool(t, v, pool.Config[*conn]{Trace: r.trace(), IdleTimeout: time.Hour})
		r.stat = p.Stat
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
			"acquire vm-1 in 1s: login refused",
			"acquire vm-1 in 1s: <nil>",
			"acquire vm-1 in 0s: <nil>",
			"release vm-1",
			"release vm-1",
			"retire vm-1: cable cut",
			"close vm-1: <nil>",
			"acquire vm-2 in 1s: <nil>",
			"release vm-2",
			"retire vm-2: connection was idle",
			"close vm-2: <nil>",
			"acquire vm-2 in 1s: <nil>",
			"retire vm-2: pool is closed",
			"close vm-2: <nil>",
			"release vm-2",
		}, r.lines)
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
