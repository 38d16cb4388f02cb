package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

// idleConn is a connection about which the pool is all there is to measure.
type idleConn struct{ done chan struct{} }

func (c idleConn) Done() <-chan struct{} { return c.done }
func (c idleConn) Err() error            { return nil }
func (c idleConn) Close() error          { close(c.done); return nil }

// BenchmarkPool measures Acquire and Release of connections that are there already: by one caller and by many, of
// one VM and of a fleet.
func BenchmarkPool(b *testing.B) {
	for _, n := range sizes([]int{100}, 4) {
		for _, rtt := range []time.Duration{0, 50 * time.Millisecond} {
			b.Run(fmt.Sprintf("fleet=%d/rtt=%v", n, rtt), func(b *testing.B) { benchmarkFleet(b, n, rtt) })
		}
	}
	for _, callers := range []int{1, 8, 64} {
		for _, keys := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("goroutines=%d/keys=%d", callers, keys), func(b *testing.B) {
				p := pool.New(pool.Config[idleConn]{
					Dial: func(context.Context, pool.Key) (idleConn, error) { return idleConn{make(chan struct{})}, nil },
				})
				b.Cleanup(func() { p.Close() })
				names := make([]pool.Key, keys)
				for i := range names {
					names[i] = pool.Key(fmt.Sprintf("vm-%d", i))
					l, err := p.Acquire(b.Context(), names[i])
					require.NoError(b, err)
					l.Release()
				}
				ctx := b.Context()
				var next atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(callers)
				one := func() {
					l, err := p.Acquire(ctx, names[int(next.Add(1))%keys])
					if err != nil {
						b.Error(err)
						return
					}
					l.Release()
				}
				if callers == 1 {
					for b.Loop() {
						one()
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						one()
					}
				})
			})
		}
	}
}
