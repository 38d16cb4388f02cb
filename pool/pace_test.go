package pool_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

func TestMaxDialsBoundsTheDialsOfAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{MaxDials: 3})
		var all []<-chan outcome
		for i := range 10 {
			all = append(all, acquireLater(t.Context(), p, pool.Key(fmt.Sprintf("vm-%d", i))))
		}
		for i, begun := range []int{3, 6, 9, 10} {
			synctest.Wait()
			require.Equal(t, begun, v.dials(), "after %d s", i)
			pass(time.Second)
		}
		for _, a := range all {
			require.NoError(t, (<-a).err)
		}
	})
}

func TestDialsAtOneServerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{
			MaxDials: 4, MaxServerDials: 2,
			Server: func(key pool.Key) string { return strings.TrimRight(string(key), "0123456789") },
		})
		var all []<-chan outcome
		for i := range 6 {
			all = append(all, acquireLater(t.Context(), p, pool.Key(fmt.Sprintf("shared-%d", i))))
		}
		synctest.Wait() // two of them have turns
		ctx, cancel := context.WithCancel(t.Context())
		given := acquireLater(ctx, p, "shared-7")
		synctest.Wait()
		require.Equal(t, 2, v.dials())
		cancel()
		require.ErrorIs(t, (<-given).err, context.Canceled)

		all = append(all, acquireLater(t.Context(), p, "other-1"), acquireLater(t.Context(), p, "third-1"))
		for i, begun := range []int{4, 6, 8, 8} { // those who wait for their server take no turn from others
			synctest.Wait()
			require.Equal(t, begun, v.dials(), "after %d s", i)
			pass(time.Second)
		}
		for _, a := range all {
			require.NoError(t, (<-a).err)
		}
	})
}

func TestPausesBetweenAttemptsTakeNoTurnFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: failFirst(1, errRefused)}
		p := newPool(t, v, pool.Config[*conn]{MaxDials: 1, RetryBase: time.Minute, DialTimeout: time.Hour, RetryMax: time.Hour})
		pausing := acquireLater(t.Context(), p, "vm-1")
		synctest.Wait()
		start := time.Now()
		acquire(t, p, "vm-2")
		require.Zero(t, time.Since(start))
		require.NoError(t, (<-pausing).err)
	})
}

func TestDialSpacingSpreadsTheStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{takes: time.Second}
		p := newPool(t, v, pool.Config[*conn]{DialSpacing: 100 * time.Millisecond})
		var all []<-chan outcome
		for i := range 5 {
			all = append(all, acquireLater(t.Context(), p, pool.Key(fmt.Sprintf("vm-%d", i))))
		}
		for _, a := range all {
			require.NoError(t, (<-a).err)
		}
		require.Equal(t, slices.Repeat([]time.Duration{100 * time.Millisecond}, 4), v.gaps())
		pass(time.Hour)
		start := time.Now()
		acquire(t, p, "later")
		require.Equal(t, time.Second, time.Since(start), "after a quiet time there is no wait")
	})
}

func TestDialThatIsGivenUpKeepsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{}
		p := newPool(t, v, pool.Config[*conn]{DialSpacing: time.Second, MaxDials: 2})
		acquire(t, p, "vm-1")
		ctx, cancel := context.WithCancel(t.Context())
		var given []<-chan outcome
		for i := range 100 {
			given = append(given, acquireLater(ctx, p, pool.Key(fmt.Sprintf("given-up-%d", i))))
		}
		synctest.Wait()
		cancel()
		for _, g := range given {
			require.ErrorIs(t, (<-g).err, context.Canceled)
		}
		acquire(t, p, "vm-2")
		require.Equal(t, []time.Duration{time.Second}, v.gaps())
	})
}

func TestTurnGivenToADialThatIsBeingGivenUpIsNotLost(t *testing.T) {
	for range 200 { // which of the two comes first is a matter of chance
		synctest.Test(t, func(t *testing.T) {
			v := &vms{takes: time.Second}
			p := newPool(t, nil, pool.Config[*conn]{MaxDials: 1, Dial: func(ctx context.Context, key pool.Key) (*conn, error) {
				if ctx.Err() != nil {
					t.Error("dialed for nobody")
				}
				return v.Dial(ctx, key)
			}})
			first := acquireLater(t.Context(), p, "vm-1")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var given []<-chan outcome
			for _, key := range []pool.Key{"vm-2", "vm-3", "vm-4"} {
				given = append(given, acquireLater(ctx, p, key))
			}
			require.NoError(t, (<-first).err)
			for _, g := range given {
				<-g
			}
			acquire(t, p, "vm-5")
		})
	}
}

func TestKeysThatFailAreForgottenInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vms{fail: func(int) error { return errLogin{} }}
		p := newPool(t, v, pool.Config[*conn]{RetryMax: 10 * time.Second})
		most := 0
		for i := range 5000 {
			_, err := p.Acquire(t.Context(), pool.Key(fmt.Sprintf("i-%05d", i)))
			require.ErrorIs(t, err, errLogin{})
			pass(time.Second)
			most = max(most, p.Known())
		}
		require.LessOrEqual(t, most, 64, "about 20 keys are still paced at any time")
		require.Equal(t, 19, len(p.Stat().Keys), "Stat shows those")
		pass(time.Minute)
		require.Empty(t, p.Stat().Keys)
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
