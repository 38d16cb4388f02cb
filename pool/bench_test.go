package pool_test

import (
	"testing"

	"github.com/stepmux/stepmux/pool"
)

func BenchmarkAcquireRelease(b *testing.B) {
	b.Run("callers=1", func(b *testing.B) {
		p := newPool(b, &vms{}, pool.Config[*conn]{})
		acquire(b, p, "vm-1").Release()
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			l, err := p.Acquire(ctx, "vm-1")
			if err != nil {
				b.Fatal(err)
			}
			l.Release()
		}
	})
	b.Run("callers=GOMAXPROCS", func(b *testing.B) {
		p := newPool(b, &vms{}, pool.Config[*conn]{})
		acquire(b, p, "vm-1").Release()
		ctx := b.Context()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l, err := p.Acquire(ctx, "vm-1")
				if err != nil {
					b.Error(err)
					return
				}
				l.Release()
			}
		})
	})
}
